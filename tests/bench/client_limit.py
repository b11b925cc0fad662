"""How many tokens a second one `./chairlift bench` can take, before it is what is measured.

    python -m tests.bench.client_limit [--streams 16 64 256 1024] [--tick-ms 10] [--seconds 4]

A trivial server in another process writes a frame to each stream at every tick, as a step of a
batch does, so that the gaps which the client sees should be one tick; with a tick of 0 it writes
each answer at once. What the client used of a core says how many tokens a whole core would take.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import uvloop

from cli.bench import run
from cli.bench.options import Options
from cli.bench.report import percentile

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODEL = "none"


def main() -> None:
    options = arguments()
    if options.serve:
        uvloop.run(serve(options.tick_ms / 1e3))
        return
    print(
        "| streams | tick, ms | tokens/s | client, cores | µs a token | tokens/s a core "
        "| ITL p50, p99, ms |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for streams in options.streams:
        for tick in (options.tick_ms, 0.0):
            print(measured(streams, tick, options.seconds), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--tick-ms", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--serve", action="store_true", help="be the server")
    return parser.parse_args()


def measured(streams: int, tick_ms: float, seconds: float) -> str:
    tokens = int(seconds * 1000 / tick_ms) if tick_ms else 400
    requests = streams if tick_ms else 2 * streams
    with server(tick_ms) as url:
        load = Options(
            url=url,
            model=MODEL,
            requests=requests,
            concurrency=streams,
            prompt_tokens=8,
            output_tokens=tokens,
        )
        report = uvloop.run(run(load))
    if report.num_failed or report.output_tokens != requests * tokens:
        raise SystemExit(f"{report.errors}, {report.output_tokens} tokens")
    rate = report.rate(report.output_tokens)
    cpu = report.busy / rate
    gaps = sorted(report.latencies()["ITL"])
    seen = ", ".join(f"{1e3 * percentile(gaps, percent):.1f}" for percent in (50, 99))
    figures = (f"{rate:,.0f}", f"{report.busy:.2f}", f"{1e6 * cpu:.1f}", f"{1 / cpu:,.0f}")
    told = " | ".join([*figures, seen if tick_ms else "-"])
    return f"| {streams} | {tick_ms:g} | {told} |"


@contextlib.contextmanager
def server(tick_ms: float) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.bench.client_limit", "--serve"]
    process = subprocess.Popen([*command, "--tick-ms", str(tick_ms)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


async def serve(tick: float) -> None:
    answers: set[Answer] = set()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        partial(Answer, answers, tick), "127.0.0.1", 0, backlog=4096
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    due = loop.time()
    while True:
        due = max(due + (tick or 0.01), loop.time())
        await asyncio.sleep(due - loop.time())
        for answer in list(answers):
            answer.step()


class Answer(asyncio.Protocol):
    def __init__(self, answers: "set[Answer]", tick: float) -> None:
        self._answers = answers
        self._tick = tick
        self._request = b""
        self._left = 0
        self._tokens = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._request += data
        _, end, body = self._request.partition(b"\r\n\r\n")
        try:
            self._tokens = self._left = int(json.loads(body)["max_tokens"]) if end else 0
        except ValueError:
            return  # more will come
        self._transport.write(HEAD)
        if self._tick:
            self._answers.add(self)
        else:
            self._transport.write(FRAME * self._tokens)
            self.end()

    def step(self) -> None:
        self._transport.write(FRAME)
        self._left -= 1
        if not self._left:
            self.end()

    def end(self) -> None:
        self._answers.discard(self)
        usage = {"prompt_tokens": 8, "completion_tokens": self._tokens}
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        self._transport.write(chunk(last + b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        self._answers.discard(self)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FRAME = chunk(
    b'id: 12\ndata: {"id":"cmpl-07932f38c422c891b600a0d8","object":"text_completion",'
    b'"created":1796048322,"model":"SmolLM2-135M-Instruct","system_fingerprint":null,'
    b'"choices":[{"index":0,"text":" curious","logprobs":null,"finish_reason":null}],'
    b'"usage":null}\n\n'
)


if __name__ == "__main__":
    main()
