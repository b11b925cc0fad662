"""Newest tokens kept and picked in Triton; `last_tokens.py` says what that means.

Axes: N tokens of the step, S rows that sample, R rows of the worker.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


def keep_tokens(tokens: Tensor, rows: Tensor, last_tokens: Tensor) -> None:
    assert all(x.is_contiguous() for x in (tokens, rows, last_tokens))
    count = len(tokens)
    if count:
        grid = (triton.cdiv(count, BLOCK),)
        _keep_tokens_kernel[grid](tokens, rows, last_tokens, count, BLOCK=BLOCK)


def pick_tokens(tokens: Tensor, source: Tensor, last_tokens: Tensor) -> Tensor:
    assert all(x.is_contiguous() for x in (tokens, source, last_tokens))
    out = torch.empty_like(tokens)
    count = len(tokens)
    if count:
        grid = (triton.cdiv(count, BLOCK),)
        _pick_tokens_kernel[grid](tokens, source, last_tokens, out, count, BLOCK=BLOCK)
    return out


@triton.jit(do_not_specialize=["count"])
def _keep_tokens_kernel(tokens_ptr, rows_ptr, last_tokens_ptr, count, BLOCK: tl.constexpr):
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    row = tl.load(rows_ptr + s, mask=s < count, other=-1)
    token = tl.load(tokens_ptr + s, mask=row >= 0, other=0)
    tl.store(last_tokens_ptr + row, token.to(tl.int32), mask=row >= 0)


@triton.jit(do_not_specialize=["count"])
def _pick_tokens_kernel(
    tokens_ptr, source_ptr, last_tokens_ptr, out_ptr, count, BLOCK: tl.constexpr
):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = n < count
    source = tl.load(source_ptr + n, mask=inside, other=-1)
    known = tl.load(tokens_ptr + n, mask=inside, other=0)
    drawn = tl.load(last_tokens_ptr + source, mask=source >= 0, other=0)
    tl.store(out_ptr + n, tl.where(source >= 0, drawn, known), mask=inside)
