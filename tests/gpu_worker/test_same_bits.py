"""The same requests to an engine of compiled kernels: the same tokens, of the same bits of logits.

Whoever comes with them, however their prompts are cut, whether they are set back, swapped out, or
begin with what another has computed. Log-probabilities are functions of these bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.messages import Ending, RequestId, Sampling
from gpu_worker.batch import Batch
from gpu_worker.engine import Capacity
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Llama
from gpu_worker.processor import HostProcessor, Known
from gpu_worker.weights import load_model, open_weights
from scheduler.core.request import Request
from tests.gpu_worker.choices import COMPILED, compiled
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import CPU, VOCAB, make_engine, make_reference

pytestmark = pytest.mark.timeout(600)  # compiles, maybe on a machine that is busy

BLOCK_SIZE = 16
COUNT, MAX_TOKENS = 12, 24
ONE_BY_ONE: dict[str, Any] = {"max_running": 1, "prefix_cache": False}
SCHEMES: dict[str, dict[str, Any]] = {
    "again": ONE_BY_ONE,
    "together": {"prefix_cache": False},
    "in chunks": {"prefix_cache": False, "max_step_tokens": 13},
    "set back": {"prefix_cache": False, "max_step_tokens": 40, "num_blocks": 8},
    "swapped": {"preemption": "swap", "max_step_tokens": 40, "num_blocks": 8},
    "shared": {"max_step_tokens": 70},
    "by twos, prompts whole": {"max_running": 2, "prefill": "whole"},
}
HARDEST = ("set back", "shared")  # what every choice is tried with
TYPES = [
    pytest.param(torch.float32, "none", id="fp32"),
    pytest.param(torch.bfloat16, "none", id="bf16"),
    pytest.param(torch.bfloat16, "int8", id="int8"),
]
# Of each request, the tokens of its answer and the logits that each of them was drawn from.
Answers = dict[RequestId, list[tuple[int, Tensor]]]


@dataclass
class Recorder:
    """A model whose head keeps what it computes; and whose rows those were, by a processor."""

    model: Llama
    drawn: dict[tuple[RequestId, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        head = self.model.head

        def keep(x: Tensor) -> Tensor:
            self._newest = head(x)
            return self._newest

        self.model = replace(self.model, head=keep)

    def processor(self, model: Llama, cache: KVCache, _capacity: Capacity) -> HostProcessor:
        return _Recording(model, cache, self)

    def keep(self, batch: Batch) -> None:
        rows = zip(batch.sampling, batch.position.tolist(), self._newest, strict=True)
        for row, position, logits in rows:
            self.drawn[row.request_id, position] = logits.clone()


@dataclass(frozen=True)
class _Recording(HostProcessor):
    recorder: Recorder

    def launch(self, batch: Batch) -> Known:
        known = super().launch(batch)
        if batch.sampling:
            self.recorder.keep(batch)
        return known


def requests() -> list[Request]:
    """Most draw at random, some with penalties and filters; two of three begin alike."""
    generator = torch.Generator().manual_seed(11)
    prompts = torch.randint(0, VOCAB, (COUNT, 60), generator=generator).tolist()
    made = []
    for index, prompt in enumerate(prompts):
        if index % 3:
            prompt[:17] = prompts[0][:17]
        sampling = Sampling(
            seed=index,
            temperature=0.0 if index % 4 == 0 else 1.5,
            top_p=0.9 if index % 2 else 1.0,
            repetition_penalty=1.2 if index % 5 == 0 else 1.0,
        )
        length = 18 + 7 * index % 24
        ending = Ending(max_tokens=MAX_TOKENS)
        made.append(make_request(f"r.{index}", prompt[:length], ending, sampling))
    return made


def answers(model: Llama, scheme: dict[str, Any]) -> tuple[Driver, Answers]:
    recorder = Recorder(model)
    engine = make_engine(
        recorder.model,
        num_blocks=80,
        block_size=BLOCK_SIZE,
        num_host_blocks=20,
        make_processor=recorder.processor,
    )
    driver = Driver(engine, **scheme)
    first, later = requests()[:8], requests()[8:]
    tokens = driver.run(first, {3 + i: [request] for i, request in enumerate(later)})
    return driver, {
        name: [(token, recorder.drawn[name, at]) for at, token in enumerate(answer)]
        for name, answer in tokens.items()
    }


def assert_same(found: Answers, expected: Answers) -> None:
    assert found.keys() == expected.keys()
    for name, answer in expected.items():
        assert [token for token, _ in found[name]] == [token for token, _ in answer]
        for at, (_, logits) in enumerate(answer):
            assert torch.equal(found[name][at][1], logits), (name, at)


def check(model: Llama, schemes: Sequence[str]) -> None:
    _, expected = answers(model, ONE_BY_ONE)
    assert [len(answer) for answer in expected.values()] == [MAX_TOKENS] * COUNT
    assert len({token for answer in expected.values() for token, _ in answer}) > COUNT
    for name in schemes:
        driver, found = answers(model, SCHEMES[name])
        assert_same(found, expected)
        if name == "set back":
            assert sum(request.preemptions for request in driver.ended.values()) > 0
        if name == "swapped":
            assert any(plan.swap_in for plan in driver.plans)
        if name == "shared":
            assert sum(request.num_cached for request in driver.ended.values()) > 0


@pytest.fixture
def model(
    choice: str, dtype: torch.dtype, quantization: str, kernels: Path, tmp_path: Path
) -> Llama:
    """With a window of 24 tokens."""
    make_reference("mistral").save_pretrained(tmp_path)
    ops = compiled(choice, kernels, quantization)
    return load_model(open_weights(tmp_path), ops, dtype, CPU, 512)


@pytest.mark.parametrize(("dtype", "quantization"), TYPES)
@pytest.mark.parametrize("choice", ["native"])
def test_every_scheme(model: Llama) -> None:
    check(model, list(SCHEMES))


@pytest.mark.parametrize(("dtype", "quantization"), TYPES[1:])
@pytest.mark.parametrize("choice", COMPILED[1:])
def test_every_choice(model: Llama) -> None:
    check(model, HARDEST)
