"""Tiny models on a machine that others use too: one thread is faster than two that wait."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    torch.manual_seed(0)
