"""What one SSE frame costs a gateway: its CPU time while a scripted pool feeds it streams.

    python -m tests.bench.gateway_frames [--streams 64] [--seconds 10] [--rate 100]

A real server and a real gateway process; scheduler and worker are played here: every 1/rate
seconds one commit gives each stream one token. Refuses to report when a client got a wrong count.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import orjson
import psutil

from common.bus import (
    Cursors,
    DropOwner,
    DropSubmit,
    ExpireJournal,
    Lease,
    SetOwner,
    SetStatus,
    Status,
    WriteEnd,
    WriteHead,
)
from common.config import environment
from common.hashes import STATUS_FIELD, status_value
from common.messages import (
    Ended,
    FinishReason,
    JournalHead,
    RequestId,
    Sampled,
    StepResult,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
)
from common.redis_bus import RedisBus
from tests.valkey import ValkeyServer

WORKER = WorkerId("w0")
TOKEN = 1234


@dataclass
class Stream:
    frames: int = 0
    longest_gap: float = 0.0  # seconds between two reads that brought frames


async def play_pool(bus: RedisBus, options: argparse.Namespace) -> None:
    """Lead, take the streams in, feed them at the rate, end them."""
    lease = await bus.lease_take("bench", Lease())
    assert lease is not None
    await bus.register(WorkerHello(WORKER, "m", "none", 9999, 16, 8192, 4096, 512))
    cursors, submits = Cursors(), []
    beat = 0
    while len(submits) < options.streams:
        beat += 1
        await bus.write(lease.epoch, [SetStatus(STATUS_FIELD, status_value(Status(1, beat)))])
        news = await bus.news(cursors, 0.1)
        cursors.requests = news.requests_cursor or cursors.requests
        submits += news.submits
    for entry, submit in submits:
        (request,) = submit.request_ids()
        head = JournalHead(request, entry, 1, submit.tenant, submit.digest, submit.frame)
        await bus.write(lease.epoch, [WriteHead(head), SetOwner(request, WORKER)])
    requests = [submit.request_ids()[0] for _, submit in submits]
    await feed(bus, requests, submits[0][1], options)
    total = options.rate * options.seconds
    for (entry, submit), request in zip(submits, requests, strict=True):
        end = WriteEnd(0, Ended(request, total, FinishReason.LENGTH), (submit.gateway,))
        writes = [end, DropOwner(request), DropSubmit(entry), ExpireJournal(request, 60.0)]
        await bus.write(lease.epoch, writes)


async def feed(
    bus: RedisBus, requests: list[RequestId], submit: Submit, options: argparse.Namespace
) -> None:
    begin = time.monotonic()
    for position in range(options.rate * options.seconds):
        sampled = tuple(Sampled(request, position, TOKEN) for request in requests)
        result = StepResult(position + 1, sampled, 0.0)
        await bus.commit(WORKER, result, {submit.gateway: TokenBatch(sampled)})
        await asyncio.sleep(max(0.0, begin + (position + 1) / options.rate - time.monotonic()))


async def play_client(port: int, model: str) -> Stream:
    stream = Stream()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = orjson.dumps({"model": model, "prompt": "a", "stream": True})
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    last: float | None = None
    while (part := await reader.read(65536)) and b"[DONE]" not in part:
        frames = part.count(b"data: ")
        now = time.monotonic()
        if frames and last is not None:
            stream.longest_gap = max(stream.longest_gap, now - last)
        last = now if frames else last
        stream.frames += frames
    stream.frames += part.count(b"data: ")
    writer.close()
    return stream


async def wait_until_it_listens(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def measure(
    url: str, gateway: subprocess.Popen[bytes], port: int, options: argparse.Namespace
) -> dict[str, float]:
    bus = RedisBus(url, "bench")
    await bus.connect()
    process = psutil.Process(gateway.pid)
    await wait_until_it_listens(port)
    async with asyncio.timeout(options.seconds + 60), asyncio.TaskGroup() as tasks:
        pool = tasks.create_task(play_pool(bus, options))
        await asyncio.sleep(1.5)  # until the gateway has seen the pool's beat move
        clients = [tasks.create_task(play_client(port, "bench")) for _ in range(options.streams)]
        begin, before = time.monotonic(), process.cpu_times()
        await pool
        streams = [await client for client in clients]
    wall, after = time.monotonic() - begin, process.cpu_times()
    await bus.aclose()
    total = options.streams * options.rate * options.seconds
    # A coalesced frame carries several tokens; the last chunk only says the end.
    assert all(stream.frames >= 2 for stream in streams)
    cpu = after.user + after.system - before.user - before.system
    return {
        "tokens": total,
        "frames": sum(stream.frames for stream in streams),
        "wall_seconds": round(wall, 2),
        "gateway_cpu_seconds": round(cpu, 2),
        "us_per_token": round(cpu / total * 1e6, 1),
        "share_of_a_core": round(cpu / wall, 3),
        "longest_gap_ms": round(max(stream.longest_gap for stream in streams) * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rate", type=int, default=100)
    options = parser.parse_args()
    server = ValkeyServer().start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [
        "--redis-url",
        server.url,
        "--pool",
        "bench",
        "--port",
        str(port),
        "--served-model-name",
        "bench",
    ]
    command = [sys.executable, "-m", "gateway", *flags, "--log-level", "warning"]
    gateway = subprocess.Popen(command, env=environment())
    try:
        print(json.dumps(asyncio.run(measure(server.url, gateway, port, options)), indent=1))
    finally:
        gateway.terminate()
        gateway.wait(30)
        server.close()


if __name__ == "__main__":
    main()
