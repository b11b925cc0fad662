"""The first launch of attention in Triton: softmax(q k) v of one tile over one split.

Axes: S sequences, N tokens of the step, G key/value heads, R query heads of one of them, D head
size, B tokens in a block, C key/value heads of this launch, M rows of a tile, L keys at a time,
X splits of the context.
"""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["table_stride", "num_sequences", "num_rows", "split_tokens", "first_group"]
)
def attention_kernel(  # noqa: C901, PLR0912  (most branches are over constants)
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_tables_ptr,
    cu_seqlens_ptr,
    lengths_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    acc_ptr,
    stats_ptr,
    inner,
    outer,
    table_stride,
    num_sequences,
    num_rows,
    split_tokens,
    first_group,
    WINDOW: tl.constexpr,
    C: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
    TILE: tl.constexpr,
    M: tl.constexpr,
    PADDED_D: tl.constexpr,
    L: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_CAPPED: tl.constexpr,
    DOT: tl.constexpr,
):
    """One program for TILE tokens of a sequence, the R heads of a group, and one split.

    Its M rows are pairs of token and head. Invariant of the loop, over the keys seen so far:
    `peak` is a row's largest score, `total` the sum of 2^((score - peak) * outer), `acc` the sum of
    2^((score - peak) * outer) * value. Before the first key `peak` is finite and below any score,
    so that a hidden key, whose score is -inf, weighs 0 always.
    """
    # Last tiles first: they see the most keys of their chunk, and no long work begins at the end.
    tile = tl.num_programs(0) // C - 1 - tl.program_id(0) // C
    c = tl.program_id(0) % C
    g = first_group + c
    s = find_sequence(tile, cu_seqlens_ptr, num_sequences, TILE)
    first_row = tl.load(cu_seqlens_ptr + s)
    num_own = tl.load(cu_seqlens_ptr + s + 1) - first_row  # rows of the sequence
    first = (tile - first_tile(s, first_row, TILE)) * TILE  # of the tile, in the sequence
    if first >= num_own:
        return
    length = tl.load(lengths_ptr + s)
    before = length - num_own + first  # cached tokens before the tile
    end = tl.minimum(length, before + TILE)
    last = end - 1  # position of the tile's last row
    begin = 0
    if WINDOW:
        begin = tl.maximum(0, before - WINDOW + 1) // L * L
    if IS_SPLIT:
        begin = tl.maximum(begin, tl.program_id(1) * split_tokens)
        end = tl.minimum(end, (tl.program_id(1) + 1) * split_tokens)
        if begin >= end:
            return

    m = tl.arange(0, M)  # [M]
    d = tl.arange(0, PADDED_D)  # [D]
    n = (first_row + first + m // R).to(tl.int64)  # [M] in the step
    is_row = (m < TILE * R) & (first + m // R < num_own)
    position = tl.minimum(before + m // R, last)  # [M]; who is no row sees what the last one does
    mask = is_row[:, None] & (d < D)[None, :]
    q_rows = (n * G + g) * R + m % R  # [M] in q and out
    q = tl.load(q_ptr + q_rows[:, None] * D + d[None, :], mask=mask, other=0.0).to(DOT)  # [M, D]
    if k_scale_ptr is not None:
        k_scale = tl.load(k_scale_ptr + g)
        if IS_CAPPED:
            inner *= k_scale
        else:
            outer *= k_scale

    peak = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, PADDED_D), tl.float32)
    for start in range(begin, end, L):
        t = start + tl.arange(0, L)  # [L]
        is_token = t < end
        if WINDOW:
            is_token &= t > before - WINDOW
        block = tl.load(
            block_tables_ptr + s.to(tl.int64) * table_stride + t // B, mask=is_token, other=0
        )
        cached = ((block.to(tl.int64) * G + g) * B + t % B)[:, None] * D + d[None, :]  # [L, D]
        cached_mask = is_token[:, None] & (d < D)[None, :]
        k = tl.load(k_cache_ptr + cached, mask=cached_mask, other=0.0)
        v = tl.load(v_cache_ptr + cached, mask=cached_mask, other=0.0)

        scores = tl.dot(q, tl.trans(_widen(k, DOT)), input_precision="ieee")  # [M, L]
        if IS_CAPPED:
            scores = 2 / (1 + tl.exp2(scores * inner)) - 1
        seen = t[None, :] <= position[:, None]
        if WINDOW:
            seen &= t[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores * outer - (new_peak * outer)[:, None])
        rescale = tl.exp2((peak - new_peak) * outer)
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(DOT), _widen(v, DOT), acc, input_precision="ieee")
        peak = new_peak

    if IS_SPLIT and length > split_tokens:
        rows = (tl.program_id(1).to(tl.int64) * num_rows + n) * (C * R) + c * R + m % R  # [M]
        tl.store(stats_ptr + rows * 2, peak * outer, mask=is_row)
        tl.store(stats_ptr + rows * 2 + 1, total, mask=is_row)
        tl.store(acc_ptr + rows[:, None] * D + d[None, :], acc, mask=mask)
    else:
        out = acc / total[:, None]
        if v_scale_ptr is not None:
            out *= tl.load(v_scale_ptr + g)
        tl.store(out_ptr + q_rows[:, None] * D + d[None, :], out, mask=mask)


@triton.jit
def _widen(x, DOT: tl.constexpr):
    """Cached numbers in the type that they are multiplied in; uint8 is e4m3 where no cast knows it.

    The bits of e4m3, moved to where float16 has its exponent and mantissa, are 1/256 of the number.
    """
    if x.dtype == tl.uint8:
        bits = (x.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -16385  # the sign stands twice
        x = bits.to(tl.float16, bitcast=True) * 256.0
    return x.to(DOT)


@triton.jit
def find_sequence(tile, cu_seqlens_ptr, num_sequences, TILE: tl.constexpr):
    """The sequence of a tile of TILE tokens.

    How many tiles come before a sequence is not known without a sum over all; but if sequence s
    begins at `first_tile(s)`, each has room enough, and a search finds it. While decoding the first
    guess is right: reads that wait for each other would take longer than many a program's work.

    Invariant: sequence `low` begins at or before the tile, sequence `high` after it.
    """
    low = tile * 0
    high = low + num_sequences
    if TILE == 1:
        guess = tl.minimum(tile, num_sequences - 1)
        low = tl.where(tl.load(cu_seqlens_ptr + guess) <= tile, guess, low)
        high = tl.where(tl.load(cu_seqlens_ptr + guess + 1) > tile, guess + 1, high)
    while high - low > 1:
        middle = (low + high) // 2
        if first_tile(middle, tl.load(cu_seqlens_ptr + middle), TILE) <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def first_tile(s, first_row, TILE: tl.constexpr):
    """The first tile of sequence s, whose rows begin at `first_row`."""
    if TILE == 1:
        tile = first_row
    else:
        tile = first_row // TILE + s
    return tile
