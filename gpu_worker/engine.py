"""What computes steps, as the service sees it: two engines keep this face, `ModelEngine` and
`SimulatedEngine`. No torch here, so that the simulated one starts at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.messages import StepPlan, StepResult

Progress = Callable[[str, float], None]  # (what is done now, share of it that is done)


class EngineError(Exception):
    """The engine cannot start, or a plan contradicts what it knows. The text says what to do.

    EngineError
      + ModelError   the model cannot be loaded: missing, broken, or of a kind not supported
    """


class ModelError(EngineError): ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold: the part of a worker's hello that the engine knows."""

    model: str
    device: str
    num_blocks: int
    block_size: int  # tokens
    max_request_tokens: int  # prompt and answer of one request
    max_step_tokens: int
    max_rows: int
    num_host_blocks: int = 0  # room for blocks that are swapped out


class Engine(Protocol):
    """Synchronous, and ignorant of the bus: a test, a benchmark and the service drive it alike."""

    @property
    def capacity(self) -> Capacity: ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step. A row that fails by itself is in `errors`; an exception is a bug.

        Plans come in order, each once; `StepPlan` says in which order one is done. `gateways` of
        a plan are the service's business.
        """
        ...

    def reset(self) -> None:
        """Forget all rows and what was swapped out: the worker starts over under a new name."""
        ...


def no_progress(_what: str, _share: float) -> None:
    """For callers that do not show any."""
