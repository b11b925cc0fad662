"""Tiny models on a machine that others use too: one thread is faster than two that wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled, once for all tests, also those of other processes of this run."""
    base = tmp_path_factory.getbasetemp()
    is_one_of_several = hasattr(request.config, "workerinput")
    return (base.parent if is_one_of_several else base) / "kernels"


@pytest.fixture
def poisoned() -> Iterator[None]:
    """What a launcher makes is NaN, or the largest integer, until the kernel writes it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
