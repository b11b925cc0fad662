"""The gap test: streams decode, a long prompt arrives, and how long somebody gets no token.

A client of its own, since it must see all streams run before it sends the long prompt.
"""

import asyncio
import json
import time
from dataclasses import dataclass

from cli.bench import make_prompt
from cli.bench.http import Server, exchange
from cli.bench.options import Options
from cli.bench.stream import TokenStream

SETTLED_TOKENS = 16  # of each stream, before the long prompt is sent
AFTER_SECONDS = 0.5  # for which gaps count once the long prompt has its first token
LIMIT_SECONDS = 300.0
LONG_OUTPUT_TOKENS = 16


class GapError(Exception):
    """The test shows nothing; the text says why."""


@dataclass(frozen=True)
class Gap:
    longest_seconds: float  # between two frames of one stream while the long prompt was computed
    usual_seconds: float  # median before the long prompt came
    long_ttft_seconds: float


async def measure_gap(
    url: str, model: str, seed: int, *, streams: int, output_tokens: int, long_prompt_tokens: int
) -> Gap:
    """Prompts of 128 tokens decode; then comes the long one. GapError if a stream failed."""
    server, clock = Server.parse(url), time.perf_counter
    options = Options(prompt_tokens=128, output_tokens=output_tokens, seed=seed)
    long = Options(
        prompt_tokens=long_prompt_tokens, output_tokens=LONG_OUTPUT_TOKENS, seed=seed + 1
    )
    decoding = [TokenStream(clock) for _ in range(streams)]
    late = TokenStream(clock)
    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
        for number, stream in enumerate(decoding):
            tasks.create_task(_ask(server, model, options, number, stream))
        while any(len(s.times) < SETTLED_TOKENS for s in decoding):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        sent = clock()
        await _ask(server, model, long, 0, late)
    first = late.times[0]
    if any(stream.times[-1] < first + AFTER_SECONDS for stream in decoding):
        raise GapError("a stream ended before the long prompt had its first token")
    gaps = [pair for s in decoding for pair in zip(s.times, s.times[1:], strict=False)]
    usual = sorted(b - a for a, b in gaps if b <= sent)
    around = [b - a for a, b in gaps if b > sent and a < first + AFTER_SECONDS]
    return Gap(max(around), usual[len(usual) // 2], first - sent)


async def _ask(
    server: Server, model: str, options: Options, number: int, stream: TokenStream
) -> None:
    body = {
        "model": model,
        "max_tokens": options.output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        **make_prompt(options, number),
    }
    request = server.request("POST", "/v1/completions", json.dumps(body).encode())
    status = await exchange(server, request, stream.feed)
    stream.close()
    if status != 200 or stream.error or not stream.is_done:
        raise GapError(f"a stream failed: HTTP {status} {stream.error}")
