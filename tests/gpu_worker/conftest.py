"""Tiny models on a machine that others use too: one thread is faster than two that wait."""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """What a launcher makes is NaN, or the largest integer, until the kernel writes it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
