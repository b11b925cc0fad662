"""The sampler against a naive one of plain loops, and against the distributions it should draw."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from common.messages import Ending, RequestId, RowStart, Sampling
from gpu_worker.draw_rows import draw_rows, threshold
from gpu_worker.edits import collect
from gpu_worker.engine import Capacity
from gpu_worker.rows import Rows
from gpu_worker.sampler import SamplingColumns, sample, uniforms
from tests.gpu_worker.draw_batch import draw_batch, thresholds

VOCAB = 700  # no multiple of the stride
CAPACITY = Capacity("m", "cpu", 64, 16, 512, 512, 64)
PLAIN = Sampling(seed=11)


def draw(logits: Tensor, samplings: list[Sampling], position: int = 0) -> list[int]:
    tokens, failed = sample(logits.clone(), columns(samplings, position))
    assert not failed.any()
    return tokens.tolist()


def columns(samplings: list[Sampling], position: int) -> SamplingColumns:
    return SamplingColumns(
        seed=np.array([s.seed for s in samplings], np.uint64),
        position=np.full(len(samplings), position),
        temperature=np.array([s.temperature for s in samplings], np.float32),
        top_k=np.array([s.top_k for s in samplings], np.int64),
        top_p=np.array([s.top_p for s in samplings], np.float32),
        min_p=np.array([s.min_p for s in samplings], np.float32),
    )


def random_logits(num_rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab, generator=generator) * 2.5


def naive_distribution(logits: list[float], sampling: Sampling) -> np.ndarray:
    """Probabilities by the words of the documentation, in float64."""
    scaled = np.array(logits, np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    keep = weights >= sampling.min_p
    if sampling.top_k:
        keep &= weights >= sorted(weights, reverse=True)[min(sampling.top_k, len(weights)) - 1]
    if sampling.top_p < 1:
        total, mass, least = weights[keep].sum(), 0.0, 0.0
        for weight in sorted(weights[keep], reverse=True):
            if mass >= sampling.top_p * total:
                break
            mass, least = mass + weight, weight
        keep &= weights >= least
    weights[~keep] = 0
    return weights / weights.sum()


FILTERS = [
    pytest.param(PLAIN, id="plain"),
    pytest.param(replace(PLAIN, temperature=0.4), id="temperature"),
    pytest.param(replace(PLAIN, top_k=5), id="top-k"),
    pytest.param(replace(PLAIN, top_k=VOCAB + 9), id="top-k-of-all"),
    pytest.param(replace(PLAIN, top_p=0.8), id="top-p"),
    pytest.param(replace(PLAIN, top_p=1e-9), id="top-p-tiny"),
    pytest.param(replace(PLAIN, min_p=0.2), id="min-p"),
    pytest.param(replace(PLAIN, top_k=20, top_p=0.7, min_p=0.01, temperature=1.5), id="all"),
]


@pytest.mark.parametrize("sampling", FILTERS)
def test_draws_what_the_naive_sampler_draws(sampling: Sampling) -> None:
    logits = random_logits(40)
    for position in range(5):
        samplings = [replace(sampling, seed=seed) for seed in range(40)]
        tokens = draw(logits, samplings, position)
        numbers = uniforms(np.arange(40, dtype=np.uint64), np.full(40, position))
        for row, token in enumerate(tokens):
            sums = naive_distribution(logits[row].tolist(), sampling).cumsum()
            assert token == int(np.searchsorted(sums, numbers[row], side="right"))


@pytest.mark.parametrize("sampling", FILTERS)
def test_frequencies_are_the_probabilities(sampling: Sampling) -> None:
    num_draws = 20_000
    logits = random_logits(1, vocab=12).expand(num_draws, -1).contiguous()
    samplings = [replace(sampling, seed=3, top_k=min(sampling.top_k, 9))] * num_draws
    rows = columns(samplings, 0)
    rows = replace(rows, position=np.arange(num_draws))
    tokens, _ = sample(logits.clone(), rows)
    expected = naive_distribution(logits[0].tolist(), samplings[0]) * num_draws
    counts = np.bincount(tokens, minlength=12)
    assert not counts[expected == 0].any()
    common = expected > 5
    chi_square = ((counts - expected)[common] ** 2 / expected[common]).sum()
    assert chi_square < 35  # 11 degrees of freedom at most: once in 4,000 seeds


def test_uniforms_are_uniform_and_differ_by_seed_and_position() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    numbers = uniforms(seeds.ravel(), positions.ravel())
    assert len(np.unique(numbers)) == len(numbers)
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert ((counts - 800) ** 2 / 800).sum() < 100  # 49 degrees of freedom
    grid = numbers.reshape(200, 200)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02


def test_uniforms_never_change() -> None:
    """Answers that began before an update go on with the same draws."""
    numbers = uniforms(np.array([0, 1, 2**63 - 1], np.uint64), np.array([0, 7, 100_000]))
    assert numbers.tolist() == [0.6524484863740322, 0.24696520214533768, 0.2781543965468831]


def test_a_row_draws_the_same_whoever_shares_the_batch() -> None:
    logits = random_logits(64)
    generator = np.random.default_rng(1)
    samplings = [
        Sampling(
            seed=int(generator.integers(2**63)),
            temperature=float(generator.choice([0.0, 0.7, 1.0])),
            top_p=float(generator.choice([0.9, 1.0])),
            top_k=int(generator.choice([0, 40])),
        )
        for _ in range(64)
    ]
    together = draw(logits, samplings, position=5)
    alone = [draw(logits[i : i + 1], samplings[i : i + 1], position=5)[0] for i in range(64)]
    assert together == alone
    order = generator.permutation(64)
    assert draw(logits[order], [samplings[i] for i in order], 5) == [together[i] for i in order]


def test_temperature_zero_takes_the_largest() -> None:
    logits = random_logits(8)
    greedy = replace(PLAIN, temperature=0.0, top_k=3)
    assert draw(logits, [greedy] * 8) == logits.argmax(-1).tolist()
    assert draw(torch.zeros(1, VOCAB), [greedy]) == [0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(8)
    samplings = [replace(PLAIN, temperature=temperature)] * 8
    assert draw(logits, samplings) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(poison: float, temperature: float) -> None:
    logits = random_logits(4)
    samplings = [replace(PLAIN, temperature=temperature, top_p=0.9)] * 4
    clean = draw(logits, samplings)
    logits[2, 100] = poison
    tokens, failed = sample(logits, columns(samplings, 0))
    assert failed.tolist() == [False, False, True, False]
    assert [tokens[row] for row in (0, 1, 3)] == [clean[row] for row in (0, 1, 3)]


@pytest.mark.parametrize("vocab", [300, 6_000])
@pytest.mark.parametrize("spread", [0.01, 3.0, 20.0])
def test_rows_on_a_cpu_are_drawn_as_a_batch_on_a_gpu(vocab: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(60, vocab, generator=generator) * spread
    logits = (logits * 8).round() / 8  # with ties
    random = np.random.default_rng(2)
    columns = [
        random.choice([0.5, 1.0, 2.0], 60).astype(np.float32),
        random.choice([0, 1, 7, 2_000], 60),
        random.choice([0.05, 0.5, 0.95, 1.0], 60).astype(np.float32),
        random.choice([0.0, 0.0, 1e-6, 0.3, 1.0], 60).astype(np.float32),
    ]
    largest = logits.amax(-1)
    weights = (logits - largest[:, None]).exp()
    slow = thresholds(weights, *(torch.from_numpy(column) for column in columns[1:]))
    for row, filters in enumerate(zip(*(column.tolist() for column in columns[1:]), strict=True)):
        fast = threshold(weights[row].numpy(), *filters)
        # What is kept is the same; the numbers may differ where no weight lies between them.
        assert torch.equal(weights[row] >= fast, weights[row] >= slow[row])
    numbers = random.random(60)
    by_row = draw_rows(logits.numpy(), largest.numpy(), *columns, numbers)
    on_device = [torch.from_numpy(column) for column in (*columns, numbers)]
    assert by_row.tolist() == draw_batch(logits, largest, *on_device).tolist()


@pytest.mark.parametrize("number", [0.0, np.nextafter(1.0, 0.0), 1.0])
def test_the_ends_of_the_distribution_are_drawn(number: float) -> None:
    """Never a token without weight, however the sums round: they can make a share of 1."""
    logits = random_logits(20)
    logits[:, :5] = logits[:, -5:] = -torch.inf
    ones, zeros = np.ones(20, np.float32), np.zeros(20, np.float32)
    columns = [ones, zeros.astype(np.int64), ones, zeros, np.full(20, number)]
    expected = [5 if number == 0 else VOCAB - 6] * 20
    largest = logits.amax(-1)
    assert draw_rows(logits.numpy(), largest.numpy(), *columns).tolist() == expected
    on_device = [torch.from_numpy(column) for column in columns]
    assert draw_batch(logits, largest, *on_device).tolist() == expected


# --- Penalties, biases, bans ------------------------------------------------------------------


def edited(logits: Tensor, start: RowStart) -> Tensor:
    """The logits of one row as they are when the choice begins."""
    rows = Rows(CAPACITY, VOCAB)
    rows.start(start)
    position = len(start.tokens) - start.num_prompt
    edits = collect([rows[start.request_id]], np.array([position]))
    result = logits[None].clone()
    sample(result, replace(columns([replace(start.sampling, temperature=0)], 0), edits=edits))
    return result[0]


def start_of(
    sampling: Sampling, *, ending: Ending | None = None, answer: tuple[int, ...] = ()
) -> RowStart:
    prompt = (1, 2, 2, 3)
    ending = ending or Ending(max_tokens=50)
    return RowStart(RequestId("r.0"), prompt + answer, len(prompt), sampling, ending, ())


def test_presence_and_frequency_count_the_answer_only() -> None:
    logits = random_logits(1)[0]
    sampling = replace(PLAIN, presence_penalty=0.5, frequency_penalty=0.25)
    result = edited(logits, start_of(sampling, answer=(2, 9, 9)))
    expected = logits.clone()
    expected[2] -= 0.75
    expected[9] -= 1.0
    torch.testing.assert_close(result, expected)


def test_repetition_counts_prompt_and_answer_and_divides_or_multiplies() -> None:
    logits = random_logits(1)[0]
    logits[2], logits[9] = 3.0, -3.0
    result = edited(logits, start_of(replace(PLAIN, repetition_penalty=1.5), answer=(9, 9)))
    assert (result[2], result[9]) == (2.0, -4.5)
    untouched = [token for token in range(VOCAB) if token not in (1, 2, 3, 9)]
    assert torch.equal(result[untouched], logits[untouched])


def test_bias_is_added_after_penalties_and_repeats_add_up() -> None:
    logits = random_logits(1)[0]
    logits[2] = 3.0
    sampling = replace(PLAIN, repetition_penalty=1.5, logit_bias=((2, 1.0), (8, -7.0), (8, -7.0)))
    result = edited(logits, start_of(sampling))
    assert result[2] == 3.0  # 3 / 1.5 + 1
    assert result[8] == pytest.approx(logits[8].item() - 14)


@pytest.mark.parametrize(("num_output", "banned"), [(0, True), (1, True), (2, False)])
def test_end_tokens_are_banned_before_min_tokens(num_output: int, banned: bool) -> None:
    ending = Ending(max_tokens=9, min_tokens=2, end_tokens=(5, 6))
    answer = (40,) * num_output
    result = edited(random_logits(1)[0], start_of(PLAIN, ending=ending, answer=answer))
    assert result.isneginf().nonzero().flatten().tolist() == ([5, 6] if banned else [])


def test_all_banned_fails_the_row() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    assert sample(logits, columns([PLAIN], 0))[1].tolist() == [True]


def test_rows_without_edits_cost_none() -> None:
    rows = Rows(CAPACITY, VOCAB)
    rows.start(start_of(PLAIN))
    assert collect([rows[RequestId("r.0")]], np.array([0])) is None
