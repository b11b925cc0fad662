"""Edits of logits and log-probabilities, interpreted, against their references and the CPU's."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.edit_logits import edit_logits_reference
from gpu_worker.kernels.edit_logits_triton import edit_logits
from gpu_worker.kernels.logprobs import logprobs_reference
from gpu_worker.kernels.logprobs_triton import logprobs
from gpu_worker.sampler import Edits, SamplingColumns, sample
from tests.gpu_worker.poison import HUGE, far_apart, fenced

pytestmark = pytest.mark.usefixtures("poisoned")

VOCAB = 1500
PENALISED = (700, 0, 1, 3)  # tokens of each row
ADDED = (3, 0, 1100, 2)


def starts_of(counts: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


def make_edits(repeating: bool) -> tuple[Tensor, ...]:
    tokens = torch.cat([torch.randperm(VOCAB)[:count] for count in PENALISED]).int()
    # Few of them: the same token comes within one block of the kernel, and again in another.
    added = torch.randint(0, 40 if repeating else VOCAB, (sum(ADDED),)).int()
    addend = torch.randn(len(added))
    addend[1] = -torch.inf
    repetition, subtracted = torch.rand(2, len(tokens)) + 0.5
    columns = (starts_of(PENALISED), tokens, repetition, subtracted, starts_of(ADDED), added)
    return tuple(fenced(column) for column in (*columns, addend))


@pytest.mark.parametrize("repeating", [False, True])
def test_edit_logits(repeating: bool) -> None:
    edits = make_edits(repeating)
    logits = fenced(torch.randn(len(ADDED), VOCAB) * 3)
    logits[2, 5] = torch.nan
    expected = logits.clone()
    edit_logits_reference(expected, *edits)
    edit_logits(logits, *edits)
    assert torch.equal(logits.nan_to_num(-99.0), expected.nan_to_num(-99.0))
    assert expected[0].isneginf().sum() == 1


def test_edits_are_the_cpus() -> None:
    starts, tokens, repetition, subtracted, added_starts, added, addend = edits = make_edits(True)
    logits = torch.randn(len(ADDED), VOCAB) * 3
    rows = np.arange(len(ADDED))
    ones, zeros = np.ones(len(rows), np.float32), np.zeros(len(rows), np.float32)
    expected = logits.clone()
    cpu_edits = Edits(
        (np.repeat(rows, starts.diff().numpy()), tokens.long().numpy()),
        repetition.numpy(),
        subtracted.numpy(),
        (np.repeat(rows, added_starts.diff().numpy()), added.long().numpy()),
        addend.numpy(),
    )
    columns = (rows.astype(np.uint64), rows, zeros, rows * 0, ones, zeros)
    sample(expected, SamplingColumns(*columns, edits=cpu_edits))
    edit_logits(logits, *edits)
    assert torch.equal(logits, expected)


def test_no_edits() -> None:
    logits, none = torch.randn(2, 9), torch.zeros(0)
    starts, tokens = torch.zeros(3, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    expected = logits.clone()
    edit_logits(logits, starts, tokens, none, none, starts, tokens, none)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("chunk", [256, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "wanted"), [(700, 5), (1, 1), (19, 19)])
def test_logprobs(vocab: int, wanted: int, dtype: torch.dtype, chunk: int) -> None:
    logits = fenced((torch.randn(3, vocab) * 4).to(dtype))  # in bf16 many are equal
    logits[1, : vocab // 2] = -torch.inf
    tokens = fenced(torch.randint(0, vocab, (3,)))
    tokens[1] = 0
    actual = logprobs(logits, tokens, wanted, chunk)
    expected = logprobs_reference(logits, tokens, wanted)
    torch.testing.assert_close(actual[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(actual[1], expected[1], atol=1e-5, rtol=1e-5)
    assert torch.equal(actual[2], expected[2])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logprobs_of_a_bad_row_are_nan_and_others_the_same_bits(bad: float) -> None:
    logits = torch.randn(3, 500)
    tokens = torch.tensor([1, 2, 3])
    before = logprobs(logits, tokens, 3, 128)
    logits[1, 400] = bad
    after = logprobs(logits, tokens, 3, 128)
    alone = logprobs(logits[2:], tokens[2:], 3, 128)
    assert after[0].isnan().tolist() == [False, True, False]
    assert after[1].isnan().all(1).tolist() == [False, True, False]
    for one, other, single in zip(before, after, alone, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])
        assert torch.equal(other[2:], single)


def test_rows_may_be_further_apart_than_32_bits_count() -> None:
    logits, tokens = torch.randn(2, 64), torch.tensor([7, 63])
    far = far_apart(logits, HUGE)
    for one, other in zip(logprobs(far, tokens, 2), logprobs(logits, tokens, 2), strict=True):
        assert torch.equal(one, other)
    starts, one = torch.tensor([0, 0, 1], dtype=torch.int32), torch.ones(1)
    token = torch.tensor([63], dtype=torch.int32)
    edit_logits(far, starts, token, one, one, starts, token, one * 5)
    assert far[1, 63] == logits[1, 63] - 1 + 5
