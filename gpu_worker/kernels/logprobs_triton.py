"""Log-probabilities in Triton, two launches; `logprobs.py` says what they are.

Axes: S rows that sample, V vocabulary, C chunks of a row, A alternatives that are wanted.

Chunks are of a fixed size and are summed in a fixed order: other rows change no bit of a result.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096  # logits of a program


def logprobs(
    logits: Tensor, tokens: Tensor, num_alternatives: int, chunk: int = CHUNK
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1
    assert tokens.is_contiguous()
    assert 0 < num_alternatives <= vocab
    chunks = triton.cdiv(vocab, chunk)
    sizes, floats = (num_rows, chunks, num_alternatives), torch.float32
    peaks, sums = torch.empty(2, num_rows, chunks, dtype=floats, device=logits.device)
    values = torch.empty(sizes, dtype=floats, device=logits.device)
    places = torch.empty(sizes, dtype=torch.int32, device=logits.device)
    chosen = torch.empty(num_rows, dtype=floats, device=logits.device)
    top = torch.empty(num_rows, num_alternatives, dtype=floats, device=logits.device)
    top_tokens = torch.empty(num_rows, num_alternatives, dtype=torch.int32, device=logits.device)
    if num_rows:
        parts = (peaks, sums, values, places)
        _chunks_kernel[(num_rows, chunks)](
            logits, logits.stride(0), *parts, V=vocab, CHUNK=chunk, A=num_alternatives, num_warps=8
        )
        _rows_kernel[(num_rows,)](
            logits,
            logits.stride(0),
            *parts,
            tokens,
            chosen,
            top,
            top_tokens,
            CHUNKS=chunks,
            A=num_alternatives,
            PADDED=triton.next_power_of_2(chunks),
            PADDED_LIST=triton.next_power_of_2(chunks * num_alternatives),
        )
    return chosen, top, top_tokens


@triton.jit
def _chunks_kernel(
    logits_ptr,
    stride,
    peaks_ptr,
    sums_ptr,
    values_ptr,
    places_ptr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    A: tl.constexpr,
):
    """One program for one chunk: its largest logit, sum of exp(logit - that), and A largest."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    out = s * tl.num_programs(1) + c
    v = c * CHUNK + tl.arange(0, CHUNK)  # [CHUNK]
    x = tl.load(logits_ptr + s * stride + v, mask=v < V, other=float("-inf")).to(tl.float32)
    is_number = (x == x) & (x < float("inf"))  # noqa: PLR0124
    is_wrong = tl.min(is_number.to(tl.int32), axis=0) == 0
    x = tl.where(x == x, x, float("-inf"))  # noqa: PLR0124
    peak = tl.max(x, axis=0)
    shift = tl.where((peak > float("-inf")) & (peak < float("inf")), peak, 0.0)
    total = tl.sum(tl.exp(x - shift), axis=0)
    tl.store(peaks_ptr + out, shift)
    tl.store(sums_ptr + out, tl.where(is_wrong, float("nan"), total))
    value, place = float("inf"), -1
    for a in range(A):
        value, place = _next(x, tl.where(v < V, v, 0x7FFFFFFF), value, place)
        tl.store(values_ptr + out * A + a, value)
        tl.store(places_ptr + out * A + a, place)


@triton.jit
def _rows_kernel(
    logits_ptr,
    stride,
    peaks_ptr,
    sums_ptr,
    values_ptr,
    places_ptr,
    tokens_ptr,
    chosen_ptr,
    top_ptr,
    top_tokens_ptr,
    CHUNKS: tl.constexpr,
    A: tl.constexpr,
    PADDED: tl.constexpr,
    PADDED_LIST: tl.constexpr,
):
    """One program for one row, of its chunks."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, PADDED)  # [C]
    sums = tl.load(sums_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=0.0)
    peaks = tl.load(peaks_ptr + s * CHUNKS + c, mask=c < CHUNKS, other=0.0)
    peaks = tl.where(sums == 0.0, float("-inf"), peaks)
    peak = tl.max(peaks, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = peak + tl.log(tl.sum(sums * tl.exp(peaks - peak), axis=0))
    chosen = tl.load(logits_ptr + s * stride + tl.load(tokens_ptr + s)).to(tl.float32)
    tl.store(chosen_ptr + s, chosen - total)

    i = tl.arange(0, PADDED_LIST)  # [C * A]
    is_listed = i < CHUNKS * A
    values = tl.load(values_ptr + s * CHUNKS * A + i, mask=is_listed, other=float("-inf"))
    places = tl.load(places_ptr + s * CHUNKS * A + i, mask=is_listed, other=0x7FFFFFFF)
    value, place = float("inf"), -1
    for a in range(A):
        value, place = _next(values, places, value, place)
        tl.store(top_ptr + s * A + a, value - total)
        tl.store(top_tokens_ptr + s * A + a, place)


@triton.jit
def _next(values, places, value, place):
    """The largest value, and of equal ones the first place, that comes after (value, place)."""
    is_after = (values < value) | ((values == value) & (places > place))
    next_value = tl.max(tl.where(is_after, values, float("-inf")), axis=0)
    is_next = is_after & (values == next_value)
    return next_value, tl.min(tl.where(is_next, places, 0x7FFFFFFF), axis=0)
