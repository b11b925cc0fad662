"""Sampling in Triton, three launches whatever the rows ask for; `sample.py` says what it computes.

Axes: S rows that sample, V vocabulary, C chunks of a row.

1. the largest logit of each chunk
2. the weights of each chunk and their sum; those of rows with filters are written down, and the
   larger ones of them, which most filters need alone, go onto a short list
3. for each row the least weight that stays, by a search over the bits of weights, and the draw

Sums are integers, weights counted in 2^-44: whole numbers add up to the same in every order, so
that neither chunks, nor places on the short list, nor other rows change a single bit of a result.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.sample_draw_triton import _draw_kernel
from gpu_worker.kernels.sample_weights import SHORT, mass_of, peak_of_row, weight_of

CHUNK = 4096  # logits of a program
SHORT_LIST = 32768  # weights that a row's list has room for


def sample(
    logits: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    draws: bool = True,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """`draws`: some temperature may be above 0. `chunk` changes the time only."""
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1
    assert vocab <= 1 << 18  # or sums of weights might need more than 63 bits
    assert all(x.is_contiguous() for x in (seed, position, temperature, top_k, top_p, min_p))
    device, chunks = logits.device, triton.cdiv(vocab, chunk)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    failed = torch.empty(num_rows, dtype=torch.bool, device=device)
    if not num_rows:
        return tokens, failed
    weights = logits
    if logits.dtype != torch.float32:
        weights = torch.empty(num_rows, vocab, dtype=torch.float32, device=device)
    peaks = torch.empty(num_rows, chunks, dtype=torch.float32, device=device)
    places = torch.empty(num_rows, chunks, dtype=torch.int32, device=device)
    masses = torch.empty(num_rows, chunks, dtype=torch.int64, device=device)
    counts = torch.empty(num_rows, dtype=torch.int32, device=device)
    short_weights = torch.empty(num_rows, SHORT_LIST, dtype=torch.float32, device=device)
    short_tokens = torch.empty(num_rows, SHORT_LIST, dtype=torch.int32, device=device)
    sizes = {"V": vocab, "CHUNK": chunk, "LIMIT": SHORT_LIST, "num_warps": 8}
    padded = triton.next_power_of_2(chunks)
    _peaks_kernel[(num_rows, chunks)](
        logits, logits.stride(0), peaks, places, counts, V=vocab, CHUNK=chunk, num_warps=8
    )
    short = (counts, short_weights, short_tokens)
    rows = (temperature, top_k, top_p, min_p)
    strides = (logits.stride(0), weights.stride(0))
    if draws:
        _weights_kernel[(num_rows, chunks)](
            logits, weights, *strides, *rows, peaks, masses, *short, PADDED=padded, **sizes
        )
    _draw_kernel[(num_rows,)](
        logits,
        weights,
        *strides,
        *rows,
        seed,
        position,
        peaks,
        places,
        masses,
        *short,
        tokens,
        failed,
        PADDED=padded,
        **sizes,
    )
    return tokens, failed


@triton.jit
def _peaks_kernel(
    logits_ptr, stride, peaks_ptr, places_ptr, counts_ptr, V: tl.constexpr, CHUNK: tl.constexpr
):
    """One program for one chunk: the largest logit and its first place; NaN if there is one."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    v = c * CHUNK + tl.arange(0, CHUNK)  # [CHUNK]
    x = tl.load(logits_ptr + s * stride + v, mask=v < V, other=float("-inf")).to(tl.float32)
    is_number = x == x  # noqa: PLR0124
    has_nan = tl.min(is_number.to(tl.int32), axis=0) == 0
    x = tl.where(is_number, x, float("-inf"))
    peak = tl.max(x, axis=0)
    place = tl.min(tl.where(x == peak, v, V), axis=0)
    out = s * tl.num_programs(1) + c
    tl.store(peaks_ptr + out, tl.where(has_nan, float("nan"), peak))
    tl.store(places_ptr + out, place)
    if c == 0:
        tl.store(counts_ptr + s, 0)


@triton.jit
def _weights_kernel(
    logits_ptr,
    weights_ptr,
    logits_stride,
    weights_stride,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    peaks_ptr,
    masses_ptr,
    counts_ptr,
    short_weights_ptr,
    short_tokens_ptr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    LIMIT: tl.constexpr,
    PADDED: tl.constexpr,
):
    """One program for one chunk of a row that draws."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    temperature = tl.load(temperature_ptr + s)
    peak = peak_of_row(peaks_ptr, s, V, CHUNK, PADDED)
    if (temperature > 0) & (peak < float("inf")):
        v = c * CHUNK + tl.arange(0, CHUNK)  # [CHUNK]
        is_token = v < V
        x = tl.load(logits_ptr + s * logits_stride + v, mask=is_token, other=float("-inf"))
        weight = weight_of(x.to(tl.float32), peak, temperature)
        least = tl.load(min_p_ptr + s)
        mass = tl.sum(mass_of(tl.where(weight >= least, weight, 0.0)), axis=0)
        tl.store(masses_ptr + s * tl.num_programs(1) + c, mass)
        if (tl.load(top_k_ptr + s) > 0) | (tl.load(top_p_ptr + s) < 1) | (least > 0):
            tl.store(weights_ptr + s * weights_stride + v, weight, mask=is_token)
            is_short = is_token & (weight >= tl.maximum(least, SHORT))
            short = is_short.to(tl.int32)
            count = tl.sum(short, axis=0)
            if count > 0:
                first = tl.atomic_add(counts_ptr + s, count, sem="relaxed")
                place = first + tl.cumsum(short, axis=0) - 1
                is_short &= place < LIMIT
                tl.store(short_weights_ptr + s * LIMIT + place, weight, mask=is_short)
                tl.store(short_tokens_ptr + s * LIMIT + place, v, mask=is_short)
