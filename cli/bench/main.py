"""`./chairlift bench`: put load on OpenAI-compatible servers, measure and compare them.

./chairlift bench --url http://127.0.0.1:8000 --concurrency 16 --requests 64
"""

import asyncio
import gc
import json
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cli.bench.definitions import DEFINITIONS
from cli.bench.figures import Run, lines
from cli.bench.flags import parse
from cli.bench.http import Server
from cli.bench.load import BenchError, first_model, run
from cli.bench.options import Plan
from cli.bench.plot import plot
from cli.bench.tables import describe, run_name


def main(arguments: Sequence[str]) -> int:
    """Prints the figures. Exit status 1 if a request failed, 2 if nothing could be measured."""
    plan = parse(arguments)
    try:
        runs = _run_loop(measure(plan))
        print(json.dumps(to_json(plan, runs)) if plan.as_json else describe(plan, runs))
        if plan.plot:
            Path(plan.plot).write_text(plot(plan, lines(plan, runs)))
    except (BenchError, OSError) as error:
        sys.stderr.write(f"chairlift bench: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 1 if any(done.report.num_failed for done in runs) else 0


async def measure(plan: Plan) -> list[Run]:
    """All runs, one after the other; every server is asked for its model before the first."""
    models = {url: await _model(plan, url) for _, url in plan.servers}
    cases = list(plan.cases())
    runs = []
    for case in cases:
        gc.collect()  # not in the middle of an answer, if that can be helped
        report = await run(replace(case.options, model=models[case.options.url]))
        runs.append(Run(case.server, case.value, case.repeat, report))
        if len(cases) > 1:
            rate = report.rate(report.output_tokens)
            _say(f"{len(runs)} of {len(cases)}: {run_name(plan, runs[-1])}: {rate:.1f} tokens/s")
    return runs


async def _model(plan: Plan, url: str) -> str:
    return plan.options.model or await first_model(Server.parse(url, plan.options.api_key))


def to_json(plan: Plan, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "definitions": DEFINITIONS,
        "servers": dict(plan.servers),
        "swept": plan.sweep.name if plan.sweep else None,
        "lines": [asdict(line) for line in lines(plan, runs)],
        "runs": [
            {"server": done.server, "value": done.value, "repeat": done.repeat}
            | done.report.to_json()
            for done in runs
        ],
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _run_loop(work: Coroutine[Any, Any, list[Run]]) -> list[Run]:
    """On uvloop where it is installed: it leaves more of the machine to the server."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
