"""Newest tokens kept and picked, interpreted, against their references."""

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.last_tokens import keep_tokens_reference, pick_tokens_reference
from gpu_worker.kernels.last_tokens_triton import keep_tokens, pick_tokens
from tests.gpu_worker.poison import HUGE, fenced, untouched

pytestmark = pytest.mark.usefixtures("poisoned")

COUNTS = [0, 1, 15, 17, 256, 300]


def some_rows(count: int, num_rows: int) -> Tensor:
    """[count] rows, each once at most, of which every third is nobody's."""
    rows = torch.randperm(num_rows)[:count].int()
    rows[::3] = -1
    return fenced(rows)


@pytest.mark.parametrize("count", COUNTS)
def test_keep_tokens(count: int) -> None:
    tokens, rows = fenced(torch.randint(0, 128256, (count,))), some_rows(count, 400)
    memory = torch.randint(0, 128256, (401,)).int()  # one more, where the row -1 would lie
    expected = memory.clone()
    keep_tokens_reference(tokens, rows, expected[1:])
    keep_tokens(tokens, rows, memory[1:])
    assert torch.equal(memory, expected)


@pytest.mark.parametrize("count", COUNTS)
def test_pick_tokens(count: int) -> None:
    source, last_tokens = some_rows(count, 400), fenced(torch.randint(0, 99, (400,)).int())
    tokens = fenced(torch.randint(100, 200, (count,)).int())
    picked = pick_tokens(tokens, source, last_tokens)
    assert torch.equal(picked, pick_tokens_reference(tokens, source, last_tokens))
    assert torch.equal(picked >= 100, source < 0)


def test_a_row_may_be_picked_more_than_once() -> None:
    source, last_tokens = torch.tensor([2, 2, -1, 0]).int(), torch.tensor([5, 6, 7]).int()
    picked = pick_tokens(torch.tensor([1, 2, 3, 4]).int(), source, last_tokens)
    assert picked.tolist() == [7, 7, 3, 5]


def test_what_was_kept_is_picked_by_the_next_step() -> None:
    last_tokens = torch.zeros(4, dtype=torch.int32)
    keep_tokens(torch.tensor([11, 12]), torch.tensor([3, 1]).int(), last_tokens)
    picked = pick_tokens(
        torch.tensor([-1, 8, -1]).int(), torch.tensor([1, -1, 3]).int(), last_tokens
    )
    assert picked.tolist() == [12, 8, 11]


def test_memory_may_be_larger_than_32_bits_count() -> None:
    """Rows are int32: what can be far away is the last of very many."""
    last_tokens = untouched(HUGE, torch.int32)
    row = (1 << 31) - 1
    rows = torch.tensor([row, -1]).int()
    keep_tokens(torch.tensor([11, 12]), rows, last_tokens)
    assert last_tokens[row] == 11
    assert pick_tokens(torch.tensor([1, 2]).int(), rows, last_tokens).tolist() == [11, 2]
