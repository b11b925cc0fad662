"""Sampling on a GPU, interpreted: the tokens that its reference and the CPU's sampler draw."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels import sample_triton
from gpu_worker.kernels.sample import number, sample_reference
from gpu_worker.kernels.sample_triton import sample
from gpu_worker.kernels.sample_weights import hash_of, weight_of
from gpu_worker.sampler import SamplingColumns, uniforms
from gpu_worker.sampler import sample as sample_on_cpu
from tests.gpu_worker.poison import HUGE, far_apart, fenced

pytestmark = pytest.mark.usefixtures("poisoned")

VOCAB = 700


@dataclass(frozen=True)
class How:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


GREEDY = How(0.0)
HOWS = [
    GREEDY,
    How(),
    How(0.4),
    How(1e-30),
    How(min_p=0.2),
    How(min_p=1e-6),
    How(top_k=5),
    How(top_k=600),  # more than the short list has
    How(top_k=VOCAB + 9),
    How(top_p=0.8),
    How(3.0, top_p=1e-9),
    How(5.0, top_p=0.99999),
    How(top_k=20, top_p=0.7, min_p=0.01, temperature=1.5),
    How(top_k=50, top_p=0.9),
    How(top_k=3, min_p=0.5),
]


def columns(hows: list[How], seed: int = 0) -> tuple[Tensor, ...]:
    """Seed, position and parameters of one row for each of `hows`."""
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.iinfo(torch.int64)
    seeds = torch.randint(bounds.min, bounds.max, (len(hows),), generator=generator)
    return (
        seeds,
        torch.randint(0, 3000, (len(hows),), generator=generator),
        torch.tensor([how.temperature for how in hows]),
        torch.tensor([how.top_k for how in hows], dtype=torch.int32),
        torch.tensor([how.top_p for how in hows]),
        torch.tensor([how.min_p for how in hows]),
    )


def drawn_by_cpu(logits: Tensor, row_columns: tuple[Tensor, ...]) -> tuple[list[int], list[bool]]:
    seeds, position, temperature, top_k, top_p, min_p = (column.numpy() for column in row_columns)
    tokens, failed = sample_on_cpu(
        logits.clone().float(),
        SamplingColumns(
            seeds.view(np.uint64), position, temperature, top_k.astype(np.int64), top_p, min_p
        ),
    )
    return tokens.tolist(), failed.tolist()


def random_logits(num_rows: int, vocab: int = VOCAB, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab, generator=generator) * 2.5


def check(logits: Tensor, hows: list[How], seed: int = 0, chunk: int = 1024) -> Tensor:
    """The tokens, which reference and CPU must have too."""
    row_columns = columns(hows, seed)
    tokens, failed = sample(fenced(logits), *map(fenced, row_columns), chunk=chunk)
    expected, expected_failed = sample_reference(logits.clone(), *row_columns)
    assert tokens.tolist() == expected.tolist()
    assert failed.tolist() == expected_failed.tolist()
    assert drawn_by_cpu(logits, row_columns) == (tokens.tolist(), failed.tolist())
    return tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_filter_draws_what_the_cpu_draws(dtype: torch.dtype) -> None:
    check(random_logits(len(HOWS)).to(dtype), HOWS)


def test_many_numbers_draw_what_the_cpu_draws() -> None:
    hows = [How(), How(0.7), How(1.8), How(min_p=1e-3)] * 20
    assert len(set(check(random_logits(len(hows)), hows, seed=2).tolist())) > 30


@pytest.mark.slow
def test_many_filters_draw_what_the_cpu_draws() -> None:
    for seed in range(20):
        check(random_logits(len(HOWS), seed=seed), HOWS, seed)


def test_chunks_do_not_matter() -> None:
    hows = [GREEDY, How(), How(top_k=30, top_p=0.8), How(4.0, top_p=0.999), How(min_p=0.1)]
    logits = random_logits(len(hows))
    tokens = [check(logits, hows, chunk=chunk).tolist() for chunk in (128, 256, 1024)]
    assert tokens[0] == tokens[1] == tokens[2]


def test_a_row_is_alone_what_it_is_among_others() -> None:
    hows = [GREEDY, How(), How(top_k=30, top_p=0.8), How(min_p=0.1)]
    logits, row_columns = random_logits(len(hows)), columns(hows)
    together, _ = sample(logits.clone(), *row_columns, chunk=256)
    for s in range(len(hows)):
        one = [column[s : s + 1] for column in row_columns]
        assert sample(logits[s : s + 1].clone(), *one, chunk=256)[0] == together[s]


def test_a_short_list_that_overflows_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_triton, "SHORT_LIST", 16)
    hows = [How(4.0, top_k=30), How(top_p=0.7), How(2.0, min_p=0.1, top_p=0.9)]
    check(random_logits(len(hows)), hows)


def test_rows_that_are_not_finite_fail_alone() -> None:
    hows = [How(), How(), How(), How(top_k=2), GREEDY, GREEDY, GREEDY, How(top_p=0.5)]
    logits, row_columns = random_logits(len(hows)), columns(hows)
    expected, _ = sample(logits.clone(), *row_columns)
    logits[1, 3] = logits[4, 699] = torch.nan
    logits[3, 600] = torch.inf
    logits[5] = -torch.inf
    tokens, failed = sample(logits, *row_columns, chunk=256)
    assert failed.tolist() == [False, True, False, True, True, True, False, False]
    assert tokens.tolist() == torch.where(failed, 0, expected).tolist()


def test_of_equal_logits_the_first_is_the_largest_and_a_ban_holds() -> None:
    logits = torch.zeros(2, 300)
    logits[0, :41] = -torch.inf
    logits[1, [70, 280]] = 2.0
    assert check(logits, [GREEDY, GREEDY], chunk=64).tolist() == [41, 70]
    greedy, _ = sample(logits.clone(), *columns([GREEDY, GREEDY]), draws=False, chunk=64)
    assert greedy.tolist() == [41, 70]


def test_equal_weights_stay_together() -> None:
    logits = torch.full((10, 64), -20.0)
    logits[:, 8:16] = 1.0  # top_k 1 and a tiny top_p leave all eight
    tokens = check(logits, [How(top_k=1), How(top_p=1e-6)] * 5, chunk=64)
    assert len(set(tokens.tolist())) > 3
    assert set(tokens.tolist()) <= set(range(8, 16))


def test_no_rows() -> None:
    assert [len(out) for out in sample(torch.zeros(0, 9), *columns([]))] == [0, 0]


def test_rows_may_be_further_apart_than_32_bits_count() -> None:
    hows = [GREEDY, How(), How(top_k=5)]
    logits, row_columns = random_logits(3, 64), columns(hows)
    expected = sample(logits.clone(), *row_columns)[0]
    far = far_apart(logits, HUGE // 2)
    assert sample(far, *row_columns)[0].tolist() == expected.tolist()


# --- What the kernels share -----------------------------------------------------------------------


@triton.jit
def _each(x_ptr, y_ptr, out_ptr, hashes: tl.constexpr, count: tl.constexpr) -> None:
    i = tl.arange(0, count)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    if hashes:
        tl.store(out_ptr + i, hash_of(x, y).to(tl.int64, bitcast=True))
    else:
        tl.store(out_ptr + i, weight_of(x, 0.0, y))


def test_the_random_number_is_the_cpus() -> None:
    seeds = torch.tensor([0, 1, -1, 1 << 62, -(1 << 63), 12345, 99, -7])
    positions = torch.tensor([0, 1, 2, 3, 131071, 5, 1 << 40, 7])
    words = torch.zeros(8, dtype=torch.int64)
    _each[(1,)](seeds, positions, words, True, 8)
    ours = (words.numpy().view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    assert ours.tolist() == uniforms(seeds.numpy().view(np.uint64), positions.numpy()).tolist()
    word = (1 << 64) - 1
    pairs = zip(seeds.tolist(), positions.tolist(), strict=True)
    assert ours.tolist() == [number(seed & word, position) for seed, position in pairs]


def test_weights_are_exp_within_two_units_in_the_last_place() -> None:
    x = torch.cat(
        (-torch.rand(4000) * 40, -torch.rand(93) * 1e-3, torch.tensor([0.0, -87.5, -1e9]))
    )
    weights = torch.zeros(4096)
    _each[(1,)](x, torch.ones(4096), weights, False, 4096)
    assert weights[-3:].tolist() == [1.0, 0.0, 0.0]
    assert (weights <= 1).all()
    exact = x[:-3].double().exp()
    assert ((weights[:-3].double() - exact).abs() / exact).max() < 2 * 2.0**-23
    assert math.isclose(weights[:4000].mean(), exact[:4000].mean(), rel_tol=1e-6)
