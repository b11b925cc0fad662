"""`./chairlift bench`: put load on an OpenAI-compatible server and measure it.

./chairlift bench --url http://127.0.0.1:8000 --concurrency 16 --requests 64
"""

import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from cli.bench.load import BenchError, run
from cli.bench.options import parse
from cli.bench.report import Report


def main(arguments: Sequence[str]) -> int:
    """Prints the report. Exit status 1 if a request failed, 2 if nothing could be measured."""
    options, as_json = parse(arguments)
    try:
        report = _run_loop(run(options))
    except (BenchError, ValueError) as error:
        sys.stderr.write(f"chairlift bench: {error}\n")
        return 2
    print(json.dumps(report.to_json()) if as_json else report)
    return 1 if report.num_failed else 0


def _run_loop(work: Coroutine[Any, Any, Report]) -> Report:
    """On uvloop where it is installed: it leaves more of the machine to the server."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
