"""`./chairlift simulate`: the real scheduler on a virtual clock, and what comes of a workload."""

import gc
import json
import sys
import time
from collections.abc import Mapping, Sequence

from common.config import environment
from scheduler.simulation.calibration import fit, mean_error, read_steps
from scheduler.simulation.cases import Outcome, run_case
from scheduler.simulation.cost_models import to_json
from scheduler.simulation.errors import InputError
from scheduler.simulation.options import PROGRAM, Command, read_command
from scheduler.simulation.report import table, tenant_table


def main(arguments: Sequence[str]) -> int:
    command = read_command(arguments, environment())
    try:
        text = calibrate(command.calibrate) if command.calibrate else simulate(command)
    except InputError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(text + "\n")
    return 0


def calibrate(path: str) -> str:
    steps = read_steps(path)
    model = fit(steps)
    _say(f"{len(steps)} steps, mean error {100 * mean_error(model, steps):.1f} %")
    return to_json(model)


def simulate(command: Command) -> str:
    gc.freeze()  # what is loaded stays
    outcomes = {}
    for name, options in command.cases.items():
        began = time.monotonic()
        outcome = run_case(
            options,
            draws=command.draws,
            checks=command.checks,
            keeps_requests=command.by_request,
        )
        outcomes[name] = outcome
        ended, tokens = outcome.figures["ended"], outcome.figures["output_tokens"]
        seconds = time.monotonic() - began
        _say(f"{name}: {ended:,} requests and {tokens:,} output tokens in {seconds:.1f} s")
    return _as_json(outcomes) if command.as_json else _as_text(command, outcomes)


def _as_json(outcomes: Mapping[str, Outcome]) -> str:
    cases = [{"case": name, **outcome.figures} for name, outcome in outcomes.items()]
    return json.dumps({"cases": cases}, indent=1)


def _as_text(command: Command, outcomes: Mapping[str, Outcome]) -> str:
    found = {name: outcome.figures for name, outcome in outcomes.items()}
    settings = [options.simulation for options in command.cases.values()]
    has_goals = any(one.ttft_goal or one.tpot_goal for one in settings)
    parts = [table(found, has_goals=has_goals)]
    for name, outcome in outcomes.items():
        title = f"{name}: " if len(outcomes) > 1 else ""
        if command.by_tenant:
            parts.append(f"{title}times in ms\n{tenant_table(outcome.figures)}")
        parts += [title + drawing for drawing in outcome.drawings]
    return "\n\n".join(parts)


def _say(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
