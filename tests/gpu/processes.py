"""Runs stages, each a number of processes, and ends those that take too long."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.gpu.sections import Stage
from tests.gpu.summary import Summary

GRACE_SECONDS = 3.0  # between the end that a process knows of and its being killed


@dataclass
class Child:
    """A process that waits until it is told to begin."""

    sections: Sequence[str]
    process: subprocess.Popen[str]

    def begin(self, seconds: float) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone; its exit code says so
            print(seconds, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        self.process.kill()
        with self.process, contextlib.suppress(BrokenPipeError):
            assert self.process.stdin
            self.process.stdin.close()


def run_stages(
    stages: Sequence[Stage], command: Sequence[str], summary: Summary, seconds: float
) -> None:
    """Run them one after the other, within `seconds`; time that one leaves is the next one's.

    `command` with the names of sections runs these.
    """
    began, share = time.monotonic(), seconds / sum(stage.seconds for stage in stages)
    children = [[start(command, group) for group in stage.groups] for stage in stages]
    until = began
    try:
        for stage, beside in zip(stages, children, strict=True):
            until += stage.seconds * share
            _run(beside, summary, until)
    finally:
        for child in (child for beside in children for child in beside):
            child.kill()


def start(command: Sequence[str], group: Sequence[str]) -> Child:
    process = subprocess.Popen([sys.executable, *command, *group], stdin=subprocess.PIPE, text=True)
    return Child(group, process)


def _run(children: Sequence[Child], summary: Summary, until: float) -> None:
    seconds = until - time.monotonic() - GRACE_SECONDS
    for child in children:
        child.begin(seconds)
    running = list(children)
    while running:
        time.sleep(0.1)
        for child in list(running):
            is_late = time.monotonic() > until
            if child.process.poll() is None and not is_late:
                continue
            child.kill()
            running.remove(child)
            code = child.process.returncode
            why = f"killed after {seconds + GRACE_SECONDS:.0f} s" if is_late else f"code {code}"
            summary.ended(child.sections, f"its process ended: {why}")
        summary.write()
