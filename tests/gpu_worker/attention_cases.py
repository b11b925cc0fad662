"""Steps for attention: poisoned memory, caches of eight bits, rows taken out of a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.attention_plan import Schedule
from gpu_worker.kernels.attention_triton import attention
from tests.gpu_worker.kernel_cases import Step

FIXED = Schedule(deterministic=True)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
Sequences = list[tuple[int, int]]  # (query rows, cached tokens)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that nobody has written is NaN, so that whoever reads it is found out."""
    empty, empty_like = torch.empty, torch.empty_like
    with (
        patch.object(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan)),
        patch.object(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan)),
    ):
        yield


def attend(step: Step, schedule: Schedule | None = None, **options: object) -> Tensor:
    """`attention` in poisoned memory, with the usual scale unless there is another."""
    options = {"scale": step.q.shape[2] ** -0.5} | options
    with poisoned_memory():
        return attention(*step.tensors, **options, schedule=schedule)  # type: ignore[arg-type]


def check(step: Step, schedule: Schedule | None = None, **options: object) -> None:
    """The kernels against the reference, both with `options`."""
    given = {"scale": step.q.shape[2] ** -0.5} | options
    expected = attention_reference(*step.tensors, **given)  # type: ignore[arg-type]
    tolerance = TOLERANCES[step.q.dtype]
    actual = attend(step, schedule, **options)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def with_fp8_cache(step: Step) -> Step:
    k_cache, v_cache = (x.to(torch.float8_e4m3fn) for x in (step.k_cache, step.v_cache))
    return replace(step, k_cache=k_cache, v_cache=v_cache)


def rows_of(step: Step, s: int, start: int, stop: int) -> Step:
    """A step of sequence s alone that computes only its rows [start, stop) of those in `step`."""
    first, end = step.cu_seqlens[s : s + 2].tolist()
    length = int(step.lengths[s]) - (end - first - stop)
    return replace(
        step,
        q=step.q[first + start : first + stop],
        block_tables=step.block_tables[s : s + 1, : -(-length // step.k_cache.shape[2])],
        cu_seqlens=torch.tensor([0, stop - start], dtype=torch.int32),
        lengths=torch.tensor([length], dtype=torch.int32),
    )
