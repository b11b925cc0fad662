"""`./chairlift lab`: shows what is claimed of continuous batching, on this system.

Without numbers all experiments run, in the simulator; with --real also on a real pool, those that
can.
"""

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from cli.bench import BenchError
from cli.lab import (
    batch_size,
    fairness,
    iterations,
    orca,
    paging,
    preemption,
    prefill,
    prefix_cache,
)
from cli.lab.errors import LabError
from cli.lab.experiment import Experiment, Run, Setting
from cli.lab.machine import commit, machine, others_load, today
from cli.lab.page import Key, update
from common.config import environment, variable

PROGRAM = "chairlift lab"
MODULES = (iterations, batch_size, orca, paging, prefill, preemption, fairness, prefix_cache)
EXPERIMENTS = {number: Experiment(number, module) for number, module in enumerate(MODULES, 1)}


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    chosen = [EXPERIMENTS[number] for number in sorted(set(options.numbers) or EXPERIMENTS)]
    command = shlex.join(["./chairlift", "lab", *_without_traces(arguments)])
    before = signal.signal(signal.SIGTERM, _interrupt)  # pools of ours end with it
    try:
        return _run(
            chosen, Told(options.real, options.quick, options.traces, options.write, command)
        )
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@dataclass(frozen=True)
class Told:
    real: bool
    quick: bool
    traces: Path | None
    write: Path | None
    command: str  # as the page shows it


def _run(chosen: Sequence[Experiment], told: Told) -> int:
    """The exit status. What fails is told, and the others go on."""
    skipped = 0
    with tempfile.TemporaryDirectory(prefix="chairlift-lab-") as folder:
        setting = Setting(Path(folder), told.traces, told.quick)
        for experiment in chosen:
            parts: dict[Key, str] = {}
            for kind, run in _runs(experiment, real=told.real):
                try:
                    shown = _show(experiment, kind, run, setting, told.command)
                    parts[experiment.number, kind] = shown
                except (LabError, BenchError, OSError) as error:
                    skipped += 1
                    sys.stderr.write(f"{PROGRAM}: {experiment.number}, {kind}: {error}\n")
            if parts and told.write:
                parts[experiment.number, "claim"] = experiment.claim
                update(told.write, parts)
    return 1 if skipped else 0


def _runs(experiment: Experiment, *, real: bool) -> Iterator[tuple[str, Run]]:
    yield "simulated", experiment.simulated
    if real and experiment.real:
        yield "real", experiment.real


def _show(experiment: Experiment, kind: str, run: Run, setting: Setting, command: str) -> str:
    """Run it, print it, and give it the line that says where the figures come from."""
    load, began = others_load(), time.monotonic()
    body = run(setting)
    seconds = time.monotonic() - began
    told = [f"*{kind.capitalize()}*", today()]
    if kind == "real":
        told += [machine(), f"load of the machine before it {load:.1f}"]
    told += [f"commit {commit()}"] if commit() else []
    told += [f"`{command}`", f"{seconds:.0f} s"]
    text = f"{'; '.join(told)}\n\n{body.rstrip()}\n"
    print(f"## {experiment.number}. {experiment.title}\n\n{text}", flush=True)
    return text


def _parser() -> argparse.ArgumentParser:
    titles = "\n".join(f"  {one.number}  {one.title}" for one in EXPERIMENTS.values())
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=f"{__doc__}\n{titles}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    traces = environment().get(variable("traces"))
    parser.add_argument("numbers", nargs="*", type=_number, metavar="NUMBER", help="which ones")
    parser.add_argument("--real", action="store_true", help="on a real pool too: 1, 2 and 5")
    parser.add_argument(
        "--traces",
        type=Path,
        metavar="FOLDER",
        default=Path(traces) if traces else None,
        help="public traces that 7 and 8 replay (CHAIRLIFT_TRACES)",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the results into this page, as docs/lab.md"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: only to see it work")
    return parser


def _number(text: str) -> int:
    """Of an experiment. No `choices`: argparse would ask that of no numbers at all."""
    if not (text.isdecimal() and int(text) in EXPERIMENTS):
        raise argparse.ArgumentTypeError(f"{text!r} is none of 1 to {max(EXPERIMENTS)}")
    return int(text)


def _without_traces(arguments: Sequence[str]) -> list[str]:
    """The command as the page shows it: where somebody keeps traces is nobody's business."""
    shown, rest = [], iter(arguments)
    for argument in rest:
        if argument == "--traces":
            next(rest, None)
        elif not argument.startswith("--traces="):
            shown.append(argument)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
