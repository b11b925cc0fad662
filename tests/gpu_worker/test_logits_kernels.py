"""Edits of logits and log-probabilities, interpreted, against their references and the CPU's."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from common.messages import Ending, RequestId, RowStart, Sampling
from gpu_worker.edits import collect
from gpu_worker.engine import Capacity
from gpu_worker.kernels.edit_logits import edit_logits_reference
from gpu_worker.kernels.edit_logits_triton import edit_logits
from gpu_worker.kernels.logprobs import logprobs_reference
from gpu_worker.kernels.logprobs_triton import logprobs
from gpu_worker.rows import Row, Rows
from gpu_worker.sampler import SamplingColumns, sample
from tests.gpu_worker.poison import HUGE, far_apart, fenced

pytestmark = pytest.mark.usefixtures("poisoned")

VOCAB = 1500
PENALISED = (700, 0, 1, 3, 520, 600)  # tokens of each row
ADDED = (3, 0, 1100, 2, 0, 1)
CAPACITY = Capacity("tiny", "cpu", 9, 16, 400, 64, 8)


def starts_of(counts: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).to(dtype)


def make_edits(repeating: bool, starts: torch.dtype) -> tuple[Tensor, ...]:
    """Rows whose newest token is none, new, or in the first or second block of those penalised."""
    tokens = torch.stack([torch.randperm(VOCAB - 1)[:700] for _ in PENALISED])  # [S, 700]
    promised = [-1, 7, -1, VOCAB - 1, int(tokens[4, 515]), int(tokens[5, 3])]
    penalised = torch.cat([row[:n] for row, n in zip(tokens, PENALISED, strict=True)])
    # Few of them: the same token comes within one block of the kernel, and again in another.
    added = torch.randint(0, 40 if repeating else VOCAB, (sum(ADDED),))
    added[-1] = promised[-1]
    addend = torch.randn(len(added))
    addend[1] = -torch.inf
    columns = (
        starts_of(PENALISED, starts),
        penalised.int(),
        torch.randint(0, 4, penalised.shape).int(),
        *(torch.rand(3, len(PENALISED)) + 0.5),
        torch.tensor(promised).int(),
        starts_of(ADDED, starts),
        added.int(),
        addend,
    )
    return tuple(fenced(column) for column in columns)


@pytest.mark.parametrize("starts", [torch.int32, torch.int64])
@pytest.mark.parametrize("repeating", [False, True])
def test_edit_logits(repeating: bool, starts: torch.dtype) -> None:
    edits = make_edits(repeating, starts)
    logits = fenced(torch.randn(len(ADDED), VOCAB) * 3)
    logits[2, 5] = torch.nan
    expected = logits.clone()
    edit_logits_reference(expected, *edits)
    before = logits.clone()
    edit_logits(logits, *edits)
    assert torch.equal(logits.nan_to_num(-99.0), expected.nan_to_num(-99.0))
    assert expected[0].isneginf().sum() == 1
    assert (expected[[1, 3]] != before[[1, 3]]).sum(1).tolist() == [1, 6]


SAMPLINGS = (
    Sampling(seed=1),
    Sampling(seed=1, repetition_penalty=1.3),
    Sampling(seed=1, presence_penalty=0.7, frequency_penalty=0.1, logit_bias=((3, 0.1), (3, 0.7))),
    Sampling(seed=1, presence_penalty=-0.3, frequency_penalty=1.9, repetition_penalty=0.77),
)
ANSWERS = ((5,), (9, 3, 3, 8, 3), (2, 3), (1, 80))


def row_of(rows: Rows, name: str, sampling: Sampling, answer: tuple[int, ...]) -> Row:
    prompt = (1, 2, 2, 3)
    ending = Ending(max_tokens=50, min_tokens=len(answer) * 2, end_tokens=(4, 6))
    request_id = RequestId(name)
    rows.start(RowStart(request_id, prompt + answer, len(prompt), sampling, ending, ()))
    return rows[request_id]


def kernel_edits(rows: list[Row], promised: list[int]) -> tuple[Tensor, ...]:
    counts = [row.counts for row in rows]
    tokens = [row.tokens if row else np.zeros(0, np.int64) for row in counts]
    times = [row.counts if row else np.zeros(0, np.int64) for row in counts]
    added = [
        [*row.sampling.logit_bias, *((token, -np.inf) for token in row.ending.end_tokens)]
        for row in rows
    ]
    pairs = [pair for row in added for pair in row]
    samplings = [row.sampling for row in rows]
    return (
        torch.tensor([0, *accumulate(map(len, tokens))]),
        torch.from_numpy(np.concatenate(tokens)).int(),
        torch.from_numpy(np.concatenate(times)).int(),
        torch.tensor([sampling.repetition_penalty for sampling in samplings]),
        torch.tensor([sampling.presence_penalty for sampling in samplings]),
        torch.tensor([sampling.frequency_penalty for sampling in samplings]),
        torch.tensor(promised).int(),
        torch.tensor([0, *accumulate(map(len, added))]),
        torch.tensor([token for token, _ in pairs]).int(),
        torch.tensor([addend for _, addend in pairs]),
    )


@pytest.mark.parametrize("is_promised", [False, True])
def test_edits_are_those_of_the_host_that_knows_all_tokens(is_promised: bool) -> None:
    """Of each answer the last token is in the host's counts, or promised to the kernel."""
    rows = Rows(CAPACITY, VOCAB)
    known = [
        row_of(rows, f"known-{s}", *both)
        for s, both in enumerate(zip(SAMPLINGS, ANSWERS, strict=True))
    ]
    positions = np.array([len(answer) for answer in ANSWERS])
    ones, zeros = np.ones(len(known), np.float32), np.zeros(len(known), np.float32)
    columns = (positions.astype(np.uint64), positions, zeros, positions * 0, ones, zeros)
    expected = torch.randn(len(known), VOCAB) * 3
    logits = expected.clone()
    sample(expected, SamplingColumns(*columns, edits=collect(known, positions)))
    promised = [-1] * len(known)
    if is_promised:
        promised = [answer[-1] for answer in ANSWERS]
        known = [
            row_of(rows, f"promised-{s}", sampling, answer[:-1])
            for s, (sampling, answer) in enumerate(zip(SAMPLINGS, ANSWERS, strict=True))
        ]
    edit_logits(logits, *kernel_edits(known, promised))
    assert torch.equal(logits, expected)


def test_a_row_without_edits_is_left_as_it_is() -> None:
    logits = torch.randn(2, 9)
    logits[0, :3] = torch.tensor([torch.nan, -0.0, torch.inf])
    none = torch.zeros(0, dtype=torch.int32)
    starts, promised = torch.zeros(3, dtype=torch.int32), torch.tensor([1, 0]).int()
    one, zero = torch.ones(2), torch.zeros(2)
    expected = logits.clone().view(torch.int32)
    edit_logits(logits, starts, none, none, one, zero, zero, promised, starts, none, torch.zeros(0))
    assert torch.equal(logits.view(torch.int32), expected)


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
    starts, token = torch.tensor([0, 0, 1]).int(), torch.tensor([63]).int()
    ones, promised = torch.ones(2), torch.tensor([-1, 62]).int()
    edits = (starts, token, token * 0 + 1, ones, ones, ones, promised, starts, token, ones[:1] * 5)
    edit_logits(far, *edits)
    assert far[1, 63] == logits[1, 63] - 2 + 5
    assert far[1, 62] == logits[1, 62] - 2
