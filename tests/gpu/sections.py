"""The sections of the check: which run beside each other, for how long, and where each is.

Each runs in a process of its own: a kernel that writes where it may not takes no other one with it,
and kernels are compiled on all cores. Those that take times have the machine to themselves.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what starts processes needs no torch
    from tests.gpu.machine import Machine
    from tests.gpu.report import Report

    Section = Callable[[Machine, Report], None]

MODULES = {
    "rates": "rates",
    "attention": "attention",
    "attention_kinds": "attention",
    "layers": "layers",
    "matmuls": "matmuls",
    "sampling": "sampling",
    "bits": "bits",
    "tokens": "tokens",
    "soak": "soak",
    "times": "times",
    "decode": "decode",
    "idle": "idle",
}


@dataclass(frozen=True)
class Stage:
    groups: Sequence[Sequence[str]]  # at the same time; the sections of one in one process
    seconds: float

    @property
    def sections(self) -> list[str]:
        return [name for group in self.groups for name in group]


BESIDE = ("attention", "attention_kinds", "layers", "matmuls", "sampling", "bits", "tokens", "soak")
STAGES = (
    Stage([["rates"]], 25),
    Stage([[name] for name in BESIDE], 80),
    Stage([["times"]], 55),
    Stage([["decode"]], 45),
    Stage([["idle"]], 30),
)
SECONDS = sum(stage.seconds for stage in STAGES)


DRY_STAGES = (Stage([list(MODULES)[:6], list(MODULES)[6:]], SECONDS),)  # tiny, on two cores


def choose(only: Sequence[str], *, dry: bool) -> list[Stage]:
    """The stages with the sections `only`, or all."""
    stages = []
    for stage in DRY_STAGES if dry else STAGES:
        groups = [[name for name in group if name in only or not only] for group in stage.groups]
        if any(groups):
            stages.append(Stage([group for group in groups if group], stage.seconds))
    return stages


def load(name: str) -> "Section":
    """A section's function, which bears its name; imported late, so that one that cannot be fails
    alone."""
    module = importlib.import_module(f"tests.gpu.{MODULES[name]}")
    section: Section = getattr(module, name)
    return section
