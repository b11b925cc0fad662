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


class Launched(Protocol):
    """A step on its way."""

    @property
    def is_done(self) -> bool:
        """It was computed at once: there is nothing to wait for."""
        ...

    def wait(self) -> None:
        """Return when it is computed. On any thread: it touches nothing of the engine."""
        ...

    def finish(self) -> StepResult:
        """Read what it sampled. On the engine's thread, once, in the order of the plans.

        Raises what made the step fail, if that did not show at its launch.
        """
        ...


@dataclass(frozen=True, slots=True)
class Computed:
    """A step that was computed at once."""

    result: StepResult
    is_done: bool = True

    def wait(self) -> None: ...

    def finish(self) -> StepResult:
        return self.result


class Engine(Protocol):
    """Ignorant of the bus: a test, a benchmark and the service drive it alike."""

    @property
    def capacity(self) -> Capacity: ...

    def launch(self, plan: StepPlan) -> Launched:
        """Begin one step, while at most one other is not finished yet.

        Plans come in order, each once; `StepPlan` says in which order one is done. `gateways` of
        a plan are the service's business. A row that ends in the other step, as shows when that is
        finished, has nothing in this step's result. An exception is a bug, or a plan that
        contradicts the rows.
        """
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Launch one step and finish it. A row that fails by itself is in `errors`."""
        ...

    def reset(self) -> None:
        """Forget all rows and what was swapped out: the worker starts over under a new name."""
        ...


def no_progress(_what: str, _share: float) -> None:
    """For callers that do not show any."""
