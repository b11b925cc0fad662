"""What a section finds: rows, notes and targets, in a JSON file that is true after each of them."""

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.gpu.json_file import write_json

# How far a row may be from its reference: |difference| / |reference|, over the last axis.
WITHIN = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}


@dataclass
class Findings:
    """Of one section, as the JSON file has them."""

    section: str
    status: str = "running"  # then passed or failed
    seconds: float = 0.0
    error: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)


class Report:
    """Times are by `time.monotonic`, which all processes of a machine share."""

    def __init__(self, section: str, folder: Path, began: float, until: float) -> None:
        self.findings = Findings(section)
        self.folder, self._path = folder, folder / f"{section}.json"
        self._began, self._until = began, until  # of the whole check, and of this section
        self._section_began = time.monotonic()
        self._num_failed = 0
        self._save()

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether something that takes `seconds` may begin."""
        return time.monotonic() + seconds < self._until

    def say(self, text: str) -> None:
        passed = time.monotonic() - self._began
        print(f"{passed:6.1f} s  {self.findings.section}: {text}", flush=True)

    def row(self, **values: Any) -> None:
        self.findings.rows.append(values)
        if not values.get("ok", False):  # of cases that are right there are many
            self.say(", ".join(f"{name} {_shown(value)}" for name, value in values.items()))
        self._save()

    def note(self, text: str) -> None:
        self.findings.notes.append(text)
        self.say(text)
        self._save()

    def target(self, name: str, value: float, wanted: str, *, is_met: bool) -> None:
        given = {"target": name, "value": value, "wanted": wanted, "met": is_met}
        self.findings.targets.append(given)
        self.say(f"{name} is {_shown(value)}, wanted {wanted}: {'met' if is_met else 'MISSED'}")
        self._save()

    # --- Cases --------------------------------------------------------------------------------

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """One thing of several: if it fails, the others go on and the section has failed."""
        self.say(name)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            self._num_failed += 1
            self.row(case=name, ok=False, error=_last_lines(error))
            self.say(traceback.format_exc())

    def close_to(
        self, name: str, actual: Tensor, expected: Tensor, within: float | None = None
    ) -> None:
        """A row of findings: how far `actual` is from `expected`, at most, row by row."""
        allowed = WITHIN[actual.dtype] if within is None else within
        actual, expected = actual.detach().cpu(), expected.detach().cpu()
        assert actual.shape == expected.shape, f"{actual.shape} is not {expected.shape}"
        size = expected.double().norm(dim=-1)
        # A row of zeros has no size of its own: then that of the others counts.
        size = size.clamp(min=max(1e-6, 1e-3 * size.mean().item()))
        worst = ((actual.double() - expected.double()).norm(dim=-1) / size).max().item()
        self._judge(name, worst <= allowed, worst=worst, allowed=allowed)  # NaN is not

    def equal(self, name: str, actual: Tensor, expected: Tensor) -> None:
        """A row of findings: whether all numbers are the same, NaN among them."""
        actual, expected = actual.detach().cpu(), expected.detach().cpu()
        assert actual.shape == expected.shape, f"{actual.shape} is not {expected.shape}"
        both_nan = actual.isnan() & expected.isnan()
        differing = int(((actual != expected) & ~both_nan).sum())
        self._judge(name, differing == 0, differing=differing, of=actual.numel())

    def holds(self, name: str, is_true: bool, **values: Any) -> None:
        """A row of findings: whether something is as it must be."""
        self._judge(name, is_true, **values)

    def _judge(self, name: str, ok: bool, **values: Any) -> None:
        self._num_failed += not ok
        self.row(case=name, ok=ok, **values)

    # --- The end ------------------------------------------------------------------------------

    def end(self) -> None:
        failed = self._num_failed
        if failed:
            self._end("failed", f"{failed} cases failed")
        else:
            self._end("passed")

    def fail(self, error: Exception) -> None:
        self.say("".join(traceback.format_exception(error)))
        self._end("failed", _last_lines(error))

    def _end(self, status: str, error: str = "") -> None:
        self.findings.status, self.findings.error = status, error
        self.say(f"{status} {error}".rstrip())
        self._save()

    def _save(self) -> None:
        self.findings.seconds = round(time.monotonic() - self._section_began, 3)
        write_json(self._path, asdict(self.findings))


def _last_lines(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
