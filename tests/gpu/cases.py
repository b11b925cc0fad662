"""Inputs of cases on the device: amid NaN, with outputs that are NaN until a kernel writes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import torch
from torch import Tensor

from tests.gpu_worker.kernel_cases import Step
from tests.gpu_worker.poison import fenced

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors are NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Copies amid NaN."""
    return [fenced(tensor.to(device)) for tensor in tensors]


def on_device(step: Step, device: torch.device) -> Step:
    return replace(
        step, **{each.name: getattr(step, each.name).to(device) for each in fields(step)}
    )


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)
