"""What an experiment is: a claim in words, and functions that show it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from cli.lab.errors import LabError

NO_TRACES = "needs public traces: name their folder with --traces or CHAIRLIFT_TRACES"


@dataclass(frozen=True)
class Setting:
    """What all experiments of one run are told."""

    data_dir: Path  # of real pools; kernels that were compiled stay in it
    traces: Path | None = None
    quick: bool = False  # small sizes: to see that it works, not for the page

    def trace(self, name: str) -> Path:
        if self.traces is None:
            raise LabError(NO_TRACES)
        if not (self.traces / name).is_file():
            raise LabError(f"{self.traces} has no {name}")
        return self.traces / name


Run = Callable[[Setting], str]  # to Markdown


@dataclass(frozen=True)
class Experiment:
    """A module with TITLE, `simulated`, and perhaps `real`; its docstring states the claim."""

    number: int
    module: ModuleType

    @property
    def title(self) -> str:
        title: str = self.module.TITLE
        return title

    @property
    def claim(self) -> str:
        return f"## {self.number}. {self.title}\n\n{inspect.getdoc(self.module)}\n"

    @property
    def simulated(self) -> Run:
        run: Run = self.module.simulated
        return run

    @property
    def real(self) -> Run | None:
        return getattr(self.module, "real", None)
