"""Gathering and RMS norm in one pass, in Triton; `gather_norm.py` says what they compute.

Axes: N tokens of the step, R rows that sample, E model width, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.rms_norm_triton import norm_warps


def embed_norm(
    tokens: Tensor, embedding: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    (num_rows,) = tokens.shape
    vocab, width = embedding.shape
    assert all(x.is_contiguous() for x in (tokens, embedding, weight))
    out, rows = embedding.new_empty(2, num_rows, width)
    if num_rows:
        block = triton.next_power_of_2(width)
        _embed_norm_kernel[(num_rows,)](
            tokens,
            embedding,
            weight,
            out,
            rows,
            eps,
            vocab,
            E=width,
            BLOCK=block,
            num_warps=norm_warps(block),
        )
    return out, rows


def last_norm(x: Tensor, residual: Tensor, last: Tensor, weight: Tensor, eps: float) -> Tensor:
    (num_rows,) = last.shape
    width = x.shape[1]
    assert all(t.is_contiguous() for t in (x, residual, last, weight))
    out = torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
    if num_rows:
        block = triton.next_power_of_2(width)
        _last_norm_kernel[(num_rows,)](
            x,
            residual,
            last,
            weight,
            out,
            eps,
            E=width,
            BLOCK=block,
            num_warps=norm_warps(block),
        )
    return out


@triton.jit
def _embed_norm_kernel(
    tokens_ptr,
    embedding_ptr,
    weight_ptr,
    out_ptr,
    rows_ptr,
    eps,
    vocab,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for one token."""
    n = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)  # [BLOCK]
    inside = e < E
    token = tl.load(tokens_ptr + n).to(tl.int64)
    known = (token >= 0) & (token < vocab)
    x = tl.load(embedding_ptr + token * E + e, mask=inside & known, other=0.0)
    wide = tl.where(known | ~inside, x.to(tl.float32), float("nan"))
    tl.store(rows_ptr + n * E + e, wide, mask=inside)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / E + eps)
    weight = tl.load(weight_ptr + e, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + n * E + e, wide * scale * weight, mask=inside)


@triton.jit
def _last_norm_kernel(
    x_ptr,
    residual_ptr,
    last_ptr,
    weight_ptr,
    out_ptr,
    eps,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for one row that samples."""
    r = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)  # [BLOCK]
    inside = e < E
    n = tl.load(last_ptr + r)
    x = tl.load(x_ptr + n * E + e, mask=inside, other=0.0)
    residual = tl.load(residual_ptr + n * E + e, mask=inside, other=0.0)
    wide = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / E + eps)
    weight = tl.load(weight_ptr + e, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + r * E + e, wide * scale * weight, mask=inside)
