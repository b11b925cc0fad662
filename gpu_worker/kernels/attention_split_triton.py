"""The second launch of attention in Triton: adds up what the splits of a context gave.

Axes: S sequences, N tokens of the step, D head size, C key/value heads of one launch, R query heads
of one of them, X splits of the context.

    acc            [X, N, C * R, D]      float32; sums of 2^(score - peak) * value over one split
    stats          [X, N, C * R, 2]      float32; peak, and the sum of 2^(score - peak)

What a split has nothing to say to (keys behind the row or before its window) is never read.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.attention_tile_triton import find_sequence

SPLITS_AT_ONCE = 16  # the same for all steps, for the order of sums depends on it


@triton.jit(do_not_specialize=["num_sequences", "num_rows", "split_tokens", "first_group"])
def add_splits_kernel(
    acc_ptr,
    stats_ptr,
    cu_seqlens_ptr,
    lengths_ptr,
    v_scale_ptr,
    out_ptr,
    num_sequences,
    num_rows,
    split_tokens,
    first_group,
    WINDOW: tl.constexpr,
    C: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    PADDED_D: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program for each row and query head.

    Invariant of the loop, over the splits seen so far: `peak` is the largest peak, `total` and
    `acc` are the sums over their keys of 2^(score - peak) and of that times the value.
    """
    n = tl.program_id(0)
    h = tl.program_id(1)  # in the launch
    s = find_sequence(n, cu_seqlens_ptr, num_sequences, 1)
    stop_row = tl.load(cu_seqlens_ptr + s + 1)
    length = tl.load(lengths_ptr + s)
    if (n >= stop_row) | (length <= split_tokens):
        return  # a row of nobody, or the first launch has written it

    position = length - stop_row + n
    first = 0
    if WINDOW:
        first = tl.maximum(0, position - WINDOW + 1) // split_tokens
    last = position // split_tokens

    d = tl.arange(0, PADDED_D)  # [D]
    peak = tl.full((), -1e38, tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((PADDED_D,), tl.float32)
    for start in range(first, last + 1, AT_ONCE):
        x = start + tl.arange(0, AT_ONCE)  # [X]
        is_split = x <= last
        place = (x.to(tl.int64) * num_rows + n) * (C * R) + h  # [X]
        peaks = tl.load(stats_ptr + place * 2, mask=is_split, other=-1e38)
        totals = tl.load(stats_ptr + place * 2 + 1, mask=is_split, other=0.0)
        mask = is_split[:, None] & (d < D)[None, :]
        accs = tl.load(acc_ptr + place[:, None] * D + d[None, :], mask=mask, other=0.0)  # [X, D]

        new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
        weights = tl.exp2(peaks - new_peak)
        rescale = tl.exp2(peak - new_peak)
        total = total * rescale + tl.sum(weights * totals, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * accs, axis=0)
        peak = new_peak

    out = acc / total
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + first_group + h // R)
    place = (n.to(tl.int64) * G + first_group) * R + h
    tl.store(out_ptr + place * D + d, out, mask=d < D)
