"""An engine whose every token is known beforehand, and what an answer must therefore be.

A prompt may say at which position of its answer its row fails alone, or breaks the worker.
"""

import asyncio
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from common.messages import (
    FinishReason,
    RequestId,
    RowStart,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    Submit,
    choice_seed,
)
from gpu_worker.engine import Capacity
from gpu_worker.engine_thread import Deliver
from gpu_worker.engine_thread import Outcome as StepOutcome
from gpu_worker.simulated import SimulatedEngine

NUM_TOKENS = 100  # different ones
TOKEN_CHARS = 3  # of each one's text
NUM_WORDS = 500  # of prompts; two more, as its last token, make a prompt that ends badly:
FAILING, BREAKING = 500, 501  # its row fails alone; the worker that computes it does
MAX_SOUND = 8  # tokens before that
NOT_FINITE = "the logits are not finite"


class BrokenError(Exception):
    """What a bug does to a worker."""


def token_bytes(token: int) -> bytes:
    return b" %02d" % token


def tokens_of(text: str) -> list[int]:
    assert len(text) % TOKEN_CHARS == 0, f"half a token in {text!r}"
    return [int(text[at : at + TOKEN_CHARS]) for at in range(0, len(text), TOKEN_CHARS)]


def truth(prompt: Sequence[int], sampling: Sampling, position: int) -> int:
    """The token at `position`: another prompt, seed, penalty or position makes another one."""
    knobs = (sampling.seed, int(8 * sampling.presence_penalty), position)
    return zlib.crc32(array("q", (*prompt, *knobs)).tobytes()) % NUM_TOKENS


def ends_badly_at(prompt: Sequence[int], position: int) -> bool:
    return prompt[-1] >= NUM_WORDS and position == sum(prompt) % MAX_SOUND


def full_answer(submit: Submit, choice: int) -> tuple[list[int], FinishReason]:
    """What a choice says if nobody stops it, and how it ends by itself then."""
    sampling, prompt = sampling_of(submit, choice), submit.prompts[choice // submit.n]
    tokens: list[int] = []
    while len(tokens) < submit.ending.max_tokens:
        if ends_badly_at(prompt, len(tokens)):
            return tokens, FinishReason.ERROR
        tokens.append(truth(prompt, sampling, len(tokens)))
        if tokens[-1] in submit.ending.end_tokens:
            return tokens, FinishReason.STOP
    return tokens, FinishReason.LENGTH


def sampling_of(submit: Submit, choice: int) -> Sampling:
    return replace(submit.sampling, seed=choice_seed(submit.sampling.seed, choice))


class TruthfulEngine(SimulatedEngine):
    """Checks plans as the simulated one does, and says `truth`."""

    def __init__(self, capacity: Capacity, step_seconds: float, token_seconds: float) -> None:
        super().__init__(capacity, step_seconds, token_seconds)
        self.hang_seconds = 0.0  # that the next step takes longer
        self.is_broken = False  # the next step fails
        self._starts: dict[RequestId, RowStart] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for row in plan.admitted:
            self._starts[row.request_id] = row
        result = super().execute(plan)
        if self.is_broken:
            self.is_broken = False
            raise BrokenError
        errors = {
            sampled.request_id: NOT_FINITE for sampled in result.sampled if not self._draw(sampled)
        }
        sound = tuple(each for each in result.sampled if each.request_id not in errors)
        return replace(result, sampled=sound, errors=errors)

    def _draw(self, sampled: Sampled) -> bool:
        """The token; False if the row fails."""
        row = self._starts[sampled.request_id]
        prompt = row.tokens[: row.num_prompt]
        if fails := ends_badly_at(prompt, sampled.position):
            if prompt[-1] == BREAKING:
                raise BrokenError
        else:
            sampled.token = truth(prompt, row.sampling, sampled.position)
            if sampled.token in row.ending.end_tokens:
                sampled.finish = FinishReason.STOP
        if fails or sampled.finish:
            self._rows[sampled.request_id].has_ended = True
        return not fails


class LoopRunner:
    """The engine on the event loop, where a step takes virtual time."""

    def __init__(self, engine: TruthfulEngine, deliver: Deliver, step_seconds: float) -> None:
        self.step = 0
        self._engine = engine
        self._deliver = deliver
        self._step_seconds = step_seconds
        self._plans: deque[StepPlan] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, plan: StepPlan) -> None:
        self._plans.append(plan)
        self._next()

    async def stop(self) -> None:
        self._plans.clear()
        while self._timer is not None:  # noqa: ASYNC110 - as the thread is waited for
            await asyncio.sleep(self._step_seconds)

    def _next(self) -> None:
        if self._timer is None and self._plans:
            plan = self._plans.popleft()
            self.step = plan.step
            seconds = self._step_seconds + self._engine.hang_seconds
            self._engine.hang_seconds = 0.0
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._execute, plan)

    def _execute(self, plan: StepPlan) -> None:
        self.step, self._timer = 0, None
        outcome: StepOutcome
        try:
            outcome = self._engine.execute(plan)
        except Exception as error:  # noqa: BLE001 - as the real one
            outcome = error
            self._plans.clear()
            self.put = lambda plan: None  # type: ignore[method-assign]
        self._deliver(plan, outcome)
        self._next()
