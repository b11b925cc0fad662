"""`python -m tests.abuse.schema --schemathesis BIN`: requests made from the OpenAPI document.

`BIN` is the program `st` of Schemathesis, which needs an environment of its own:
`python -m venv V && V/bin/pip install schemathesis`, then `V/bin/st`. Exit status 0: no answer was
a server's fault or other than the document says, and nothing was left behind.
"""

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import orjson
from redis import Redis

from cli.bench.http import Server, exchange
from tests.abuse.attacks import MODEL, Target
from tests.abuse.run import FLAGS, errors_in, fill, rest
from tests.soak import verdict
from tests.soak.watch import Watch
from tests.system.started import ROOT, start

EXCLUDED = "positive_data_acceptance,ensure_resource_availability"  # fields that exclude each other
NUM_OPERATIONS = 9
MODEL_LENGTH = 128  # answers without `max_tokens` are no longer
ANSWER_SECONDS = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse.schema", description=__doc__)
    parser.add_argument("--schemathesis", required=True, help="the program `st`")
    parser.add_argument("--cases", type=int, default=5000, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="schema-") as folder:
        wrong = asyncio.run(run(Path(folder), options))
    for text in wrong:
        print(f"wrong: {text}")
    print(f"verdict: {len(wrong)} things are wrong" if wrong else "verdict: right")
    return 1 if wrong else 0


async def run(folder: Path, options: argparse.Namespace) -> list[str]:
    flags = (*FLAGS, "--step-ms=0", f"--max-model-len={MODEL_LENGTH}", "--journal-seconds=600")
    system = await asyncio.to_thread(start, folder, *flags)
    wrong: list[str] = []
    try:
        with Redis.from_url(system.redis_url(), decode_responses=True) as redis:
            watch = Watch(system.process.pid, redis, folder)
            streams = [await stream(system.url, streamed=streamed) for streamed in (True, False)]
            server = Server.parse(system.url)
            target = Target(server.host, server.port, 1.0, random.Random(0))
            wrong += await fill(target, MODEL_LENGTH // 2)
            wrong += await cases(system.url, options, streams, num_cases=options.cases // 10)
            before = await rest(watch, redis, wrong)
            wrong += await cases(system.url, options, streams, num_cases=options.cases)
            after = await rest(watch, redis, wrong)
        found = verdict.left_behind(before, after)
        wrong += [text for text in found if not is_of_journals(text)]
        if after.num_lasting > before.num_lasting:
            wrong.append(f"{after.num_lasting} keys without a time to live")
    finally:
        status = await asyncio.to_thread(system.stop)
    wrong += errors_in(folder / "logs" / "gateway-0.log")
    return [*wrong, f"`up` ended with {status}"] if status else wrong


def is_of_journals(text: str) -> bool:
    """They stay for ten minutes."""
    return "keys" in text or (text.startswith("valkey") and "MiB" in text)


async def stream(url: str, *, streamed: bool) -> str:
    """The id of a request that was answered, and can be read again."""
    server, body = Server.parse(url), bytearray()
    asked = {"model": MODEL, "prompt": "Hello", "max_tokens": 9, "stream": streamed}
    request = replace(server, headers={"X-Resumable": "true"}).request(
        "POST", "/v1/completions", orjson.dumps(asked)
    )
    assert await exchange(server, request, body.extend) == 200
    found = re.search(rb'"id":"([^"]+)"', body)
    assert found
    return found[1].decode()


async def cases(
    url: str, options: argparse.Namespace, streams: list[str], num_cases: int
) -> list[str]:
    """What Schemathesis finds wrong."""
    command = [
        *(options.schemathesis, "run", f"{url}/openapi.json", "--no-color"),
        *("--phases", "examples,coverage,fuzzing", "--continue-on-failure"),
        *("--exclude-checks", EXCLUDED, "--request-timeout", str(ANSWER_SECONDS)),
        *("--max-examples", str(1 + num_cases // NUM_OPERATIONS), "--seed", str(options.seed)),
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ
        | {"SCHEMATHESIS_HOOKS": "tests.abuse.hooks", "PYTHONPATH": str(ROOT)}
        | {"CHAIRLIFT_STREAMS": ",".join(streams)},
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    said = (await process.communicate())[0].decode()
    print(said[-3000:], flush=True)
    return [] if process.returncode == 0 else [f"Schemathesis: {said[:20000]}"]


if __name__ == "__main__":
    sys.exit(main())
