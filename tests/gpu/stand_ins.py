"""Stands in for packages that the worker logs with, on a machine that has torch and little else."""

import importlib.util
import sys
from types import ModuleType
from typing import Any


class PrintingLogger:
    """As much of structlog's as modules of the worker call while they compute."""

    def info(self, event: str, **values: Any) -> None:
        print(event, *(f"{name}={value}" for name, value in values.items()), flush=True)

    warning = error = debug = info

    def bind(self, **_values: Any) -> "PrintingLogger":
        return self


def provide() -> list[str]:
    """Put stand-ins in place of what is missing; their names."""
    if importlib.util.find_spec("structlog"):
        return []
    sys.modules["structlog"] = structlog()
    return ["structlog"]


def structlog() -> ModuleType:
    module = ModuleType("structlog")
    module.get_logger = PrintingLogger  # type: ignore[attr-defined]
    return module
