"""How soon a gateway answers `/health` while something else happens to it."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from cli.bench.http import ExchangeError, Server, exchange

PAUSE_SECONDS = 0.05
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Answered:
    milliseconds: Sequence[float]  # of each answer, sorted
    failures: Sequence[str]

    def percentile(self, percent: int) -> float:
        """Nearest rank."""
        last = len(self.milliseconds) - 1
        return self.milliseconds[min(len(self.milliseconds) * percent // 100, last)]


async def ask(server: Server, until: asyncio.Event) -> Answered:
    """On a new connection each time, as probes do, until the event is set."""
    took: list[float] = []
    failures: list[str] = []
    request = server.request("GET", "/health")
    while not until.is_set():
        began = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                status = await exchange(server, request, lambda _: None)
            if status != 200:
                failures.append(f"/health answers {status}")
        except (ExchangeError, OSError, TimeoutError) as error:
            failures.append(f"/health: {error!r}")
        took.append(1e3 * (time.perf_counter() - began))
        await asyncio.sleep(PAUSE_SECONDS)
    return Answered(sorted(took), failures)


async def main(url: str) -> None:
    """Until whoever started it closes its standard input."""
    loop, until = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, until.set)
    print("asking", flush=True)
    print(json.dumps(asdict(await ask(Server.parse(url), until))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
