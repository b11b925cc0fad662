"""The engine on a tiny model: plans done in their order, rows that do not touch one another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.messages import (
    BlockId,
    Chunk,
    Ending,
    FinishReason,
    RequestId,
    RowStart,
    Sampling,
    StepPlan,
    StepResult,
)
from gpu_worker.engine import EngineError
from gpu_worker.llama import Llama
from gpu_worker.model_engine import NOT_FINITE, ModelEngine
from tests.gpu_worker.driving import GREEDY
from tests.gpu_worker.tiny import VOCAB, load, make_engine, make_reference

R0, R1 = RequestId("r.0"), RequestId("r.1")
PROMPT = (5, 6, 7, 8, 9)
NAN_TOKEN = 13


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    path: Path = tmp_path_factory.mktemp("model")
    make_reference("llama").save_pretrained(path)
    return load(path)


@pytest.fixture
def engine(model: Llama) -> ModelEngine:
    return make_engine(model)


def start_of(
    request_id: RequestId = R0,
    tokens: Sequence[int] = PROMPT,
    ending: Ending | None = None,
    sampling: Sampling = GREEDY,
) -> RowStart:
    ending = ending or Ending(max_tokens=20)
    return RowStart(request_id, tuple(tokens), len(PROMPT), sampling, ending, ())


def first_plan(*starts: RowStart, step: int = 1) -> StepPlan:
    """Whole prompts; request i gets the blocks [4i, 4i + 4)."""
    chunks = tuple(
        Chunk(start.request_id, 0, len(start.tokens), blocks_of(i), samples=True)
        for i, start in enumerate(starts)
    )
    return StepPlan(step, admitted=starts, chunks=chunks)


def blocks_of(index: int) -> tuple[BlockId, ...]:
    return tuple(BlockId(4 * index + i) for i in range(4))


def decode(step: int, start: int, *request_ids: RequestId) -> StepPlan:
    return StepPlan(step, chunks=tuple(Chunk(r, start, 1, (), samples=True) for r in request_ids))


def answer(engine: ModelEngine, count: int, start: RowStart | None = None) -> list[int]:
    """Greedy tokens of one request, alone."""
    start = start or start_of()
    results = [engine.execute(first_plan(start))]
    results += [
        engine.execute(decode(2 + i, len(PROMPT) + i, start.request_id)) for i in range(count - 1)
    ]
    return [result.sampled[0].token for result in results]


# --- Plans ------------------------------------------------------------------------------------


def test_released_comes_before_admitted(engine: ModelEngine) -> None:
    tokens = answer(engine, 3)
    again = replace(first_plan(start_of(tokens=(*PROMPT, *tokens))), released=(R0,))
    result = engine.execute(again)
    assert [(s.position, s.token) for s in result.sampled] == [(3, answer(make(engine), 4)[3])]


def make(engine: ModelEngine) -> ModelEngine:
    return make_engine(engine._processor.model)


def test_a_chunk_that_does_not_reach_the_last_token_samples_nothing(engine: ModelEngine) -> None:
    start = start_of()
    part = Chunk(R0, 0, 3, blocks_of(0), samples=False)
    result = engine.execute(StepPlan(1, admitted=(start,), chunks=(part,)))
    assert result.sampled == ()
    rest = StepPlan(2, chunks=(Chunk(R0, 3, 2, (), samples=True),))
    assert engine.execute(rest).sampled[0].token == answer(make(engine), 1)[0]


def test_an_empty_plan_computes_nothing(engine: ModelEngine) -> None:
    result = engine.execute(StepPlan(1))
    assert (result.step, result.sampled, result.errors) == (1, (), {})
    assert result.seconds >= 0


def test_reset_forgets_all_rows(engine: ModelEngine) -> None:
    engine.execute(first_plan(start_of()))
    engine.reset()
    engine.execute(first_plan(start_of()))


def test_a_row_lasts_until_it_is_released(engine: ModelEngine) -> None:
    truth = answer(make(engine), 3)
    engine.execute(first_plan(start_of(), start_of(R1)))
    engine.execute(decode(2, len(PROMPT), R1))
    engine.execute(StepPlan(3, released=(R1,)))
    assert engine.execute(decode(4, len(PROMPT), R0)).sampled[0].token == truth[1]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        pytest.param(decode(2, 5, R1), "no row", id="unknown-row"),
        pytest.param(StepPlan(2, admitted=(start_of(),)), "twice", id="started-twice"),
        pytest.param(decode(2, 6, R0), "rows have not", id="token-not-known"),
        pytest.param(decode(2, 4, R0), "rows have not", id="samples-too-early"),
        pytest.param(
            StepPlan(2, chunks=(Chunk(R0, 5, 1, (BlockId(160),), True),)), "blocks", id="foreign"
        ),
        pytest.param(
            StepPlan(2, chunks=(Chunk(R0, 5, 1, (BlockId(-1),), True),)), "blocks", id="negative"
        ),
        pytest.param(StepPlan(2, chunks=(Chunk(R0, 0, 513, (), False),)), "513", id="step-too-big"),
    ],
)
def test_a_plan_that_contradicts_the_rows_is_refused(
    engine: ModelEngine, plan: StepPlan, message: str
) -> None:
    engine.execute(first_plan(start_of()))
    with pytest.raises(EngineError, match=message):
        engine.execute(plan)


def test_a_token_without_a_block_is_refused(engine: ModelEngine) -> None:
    chunk = Chunk(R0, 0, len(PROMPT), (), samples=True)
    with pytest.raises(EngineError, match="no block"):
        engine.execute(StepPlan(1, admitted=(start_of(),), chunks=(chunk,)))


def test_more_rows_than_there_are(model: Llama) -> None:
    engine = make_engine(model, max_rows=1)
    with pytest.raises(EngineError, match="more than 1 rows"):
        engine.execute(first_plan(start_of(), start_of(R1)))


# --- Ends -------------------------------------------------------------------------------------


def test_the_last_allowed_token_ends_the_row(engine: ModelEngine) -> None:
    start = start_of(ending=Ending(max_tokens=2))
    assert engine.execute(first_plan(start)).sampled[0].finish is None
    assert engine.execute(decode(2, 5, R0)).sampled[0].finish is FinishReason.LENGTH
    passed_over = engine.execute(decode(3, 6, R0))
    assert (passed_over.sampled, passed_over.errors) == ((), {})


def test_an_end_token_ends_the_row(engine: ModelEngine) -> None:
    truth = answer(make(engine), 3)
    assert truth[2] not in truth[:2]
    start = start_of(ending=Ending(max_tokens=20, end_tokens=(truth[2],)))
    results = list(run_alone(engine, start, 3))
    assert [r.sampled[0].finish for r in results] == [None, None, FinishReason.STOP]
    assert results[2].sampled[0].token == truth[2]


def test_no_end_token_before_min_tokens(engine: ModelEngine) -> None:
    truth = answer(make(engine), 1)
    ending = Ending(max_tokens=20, min_tokens=1, end_tokens=(truth[0],))
    sampled = engine.execute(first_plan(start_of(ending=ending))).sampled[0]
    assert sampled.token != truth[0]
    assert sampled.finish is None


def test_the_longest_request_ends(model: Llama) -> None:
    engine = make_engine(model, num_blocks=1, block_size=8)
    start = start_of(ending=Ending(max_tokens=100))
    plan = StepPlan(1, admitted=(start,), chunks=(Chunk(R0, 0, 5, (BlockId(0),), True),))
    results = [engine.execute(plan), *(engine.execute(decode(i - 3, i, R0)) for i in (5, 6))]
    assert [r.sampled[0].finish for r in results] == [None, None, FinishReason.LENGTH]


def run_alone(engine: ModelEngine, start: RowStart, count: int) -> Iterator[StepResult]:
    yield engine.execute(first_plan(start))
    for i in range(count - 1):
        yield engine.execute(decode(2 + i, len(start.tokens) + i, start.request_id))


# --- One row cannot spoil a step --------------------------------------------------------------


@pytest.fixture
def poisoned(model: Llama) -> ModelEngine:
    """Of a model that gives NaN for every text with NAN_TOKEN."""
    embedding = model.embedding.clone()
    embedding[NAN_TOKEN] = torch.nan
    return make_engine(replace(model, embedding=embedding), num_blocks=8)


def test_nan_ends_its_row_alone(poisoned: ModelEngine) -> None:
    truth = answer(make(poisoned), 2)
    bad = start_of(R1, (1, NAN_TOKEN, 2, 3, 4))
    result = poisoned.execute(first_plan(start_of(), bad))
    assert [s.token for s in result.sampled] == truth[:1]
    assert result.errors == {R1: NOT_FINITE}
    result = poisoned.execute(decode(2, 5, R0, R1))
    assert [s.token for s in result.sampled] == truth[1:]
    assert result.errors == {}


def test_blocks_left_by_nan_are_clean_for_the_next(poisoned: ModelEngine) -> None:
    poisoned.execute(first_plan(start_of(tokens=(1, NAN_TOKEN, 2, 3, 4, 5, 6, 7, 8, 9))))
    again = replace(first_plan(start_of(), step=2), released=(R0,))
    assert poisoned.execute(again).sampled[0].token == answer(make(poisoned), 1)[0]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(start_of(R1, (1, VOCAB)), id="token-too-large"),
        pytest.param(start_of(R1, (1, -1)), id="token-negative"),
        pytest.param(start_of(R1, ()), id="no-token"),
        pytest.param(start_of(R1, (1,) * 512), id="too-long"),
        pytest.param(start_of(R1, sampling=replace(GREEDY, logit_bias=((VOCAB, 1.0),))), id="bias"),
        pytest.param(start_of(R1, ending=Ending(9, 1, (VOCAB,))), id="end-token"),
    ],
)
def test_a_row_that_cannot_be_computed_ends_alone(engine: ModelEngine, bad: RowStart) -> None:
    chunks = (
        Chunk(R0, 0, 5, blocks_of(0), samples=True),
        Chunk(R1, 0, max(1, len(bad.tokens) - 6), (BlockId(9),), samples=True),
    )
    result = engine.execute(StepPlan(1, admitted=(start_of(), bad), chunks=chunks))
    assert [s.request_id for s in result.sampled] == [R0]
    assert list(result.errors) == [R1]
    assert engine.execute(decode(2, 5, R0, R1)).errors == {}  # told once
