"""The load client against a server whose delays and faults are known."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from cli import bench
from cli.bench.http import ChunkedBody, ExchangeError, PlainBody, Server, parse_head
from cli.bench.main import main
from cli.bench.options import Options, parse
from cli.bench.report import Report, Sample, percentile
from cli.bench.stream import TokenStream

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
GAP = 0.03  # seconds; the server's own pace


def frame(**fields: object) -> bytes:
    return b"id: 1\ndata: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str = "x", finish: str | None = None) -> bytes:
    return frame(choices=[{"index": 0, "text": text, "finish_reason": finish}])


def usage(prompt: int, output: int) -> bytes:
    return frame(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


Writer = asyncio.StreamWriter
Script = Callable[[dict, Writer], Awaitable[None]]  # a request's body to its answer


@dataclass
class FakeServer:
    """Reads whole requests, answers each as `script` says."""

    script: Script
    bodies: list[dict] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    now_open: int = 0
    most_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        self.heads.append(head)
        self.now_open += 1
        self.most_open = max(self.most_open, self.now_open)
        if head.startswith(b"GET /v1/models"):
            answer = b'{"data": [{"id": "fake"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        else:
            self.bodies.append(json.loads(body))
            await self.script(self.bodies[-1], writer)
        writer.close()
        await writer.wait_closed()
        self.now_open -= 1

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[None]:
        """Leaves when every answer is written."""
        yield
        while self.now_open:  # noqa: ASYNC110 - short, and simpler than an event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    script: Script,
) -> AsyncIterator[tuple[FakeServer, str]]:
    fake = FakeServer(script)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server, fake.idle():
        yield fake, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def write_slowly(writer: Writer, pieces: list[bytes], seconds: float = GAP) -> None:
    """Each piece after a pause."""
    for piece in pieces:
        await asyncio.sleep(seconds)
        writer.write(piece)
        await writer.drain()


async def four_tokens(body: dict, writer: Writer) -> None:
    """Three frames for four tokens, a pause before each."""
    writer.write(CHUNKED)
    await write_slowly(writer, [chunk(token("a")), chunk(token("bc")), chunk(token("d", "length"))])
    writer.write(chunk(usage(5, 4)) + chunk(DONE) + b"0\r\n\r\n")


SMALL = Options(requests=4, prompt_tokens=5, output_tokens=4, concurrency=2, timeout_seconds=5)


async def test_figures_are_those_of_the_server() -> None:
    async with serving(four_tokens) as (fake, url):
        report = await bench.run(replace(SMALL, url=url))
    assert report.num_failed == 0
    assert report.output_tokens == 16  # four a request, though frames are three
    assert report.prompt_tokens == 20
    assert fake.most_open == 2
    for sample in report.samples:
        assert len(sample.frames) == 3
        assert GAP * 0.9 < sample.ttft < sample.e2e
        assert all(gap > GAP * 0.5 for gap in sample.gaps)
        assert sum(sample.gaps) > 2 * GAP * 0.9
        assert sample.tpot == pytest.approx((sample.e2e - sample.ttft) / 3)
    assert report.seconds > 2 * 3 * GAP * 0.9  # two after one another in each of two places
    assert report.rate(16) == pytest.approx(16 / report.seconds)


async def test_prompts_are_token_ids_of_exact_number() -> None:
    async with serving(four_tokens) as (fake, url):
        await bench.run(replace(SMALL, url=url, vocabulary=(7, 9), warmup=1))
    assert len(fake.bodies) == 5
    for body in fake.bodies:
        assert len(body["prompt"]) == 5
        assert set(body["prompt"]) <= {7, 8}
        assert body["max_tokens"] == 4
        assert body["model"] == "fake"
        assert body["ignore_eos"] is True
        assert body["stream_options"] == {"include_usage": True}


def test_prompts_follow_the_seed() -> None:
    assert bench.make_prompt(SMALL, 1) == bench.make_prompt(SMALL, 1)
    assert bench.make_prompt(SMALL, 1) != bench.make_prompt(SMALL, 2)
    assert bench.make_prompt(SMALL, 1) != bench.make_prompt(replace(SMALL, seed=9), 1)


async def test_chat_sends_words_and_the_role_is_no_token() -> None:
    async def chat(body: dict, writer: Writer) -> None:
        deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]
        frames = [frame(choices=[{"delta": d, "finish_reason": None}]) for d in deltas[:-1]]
        frames.append(frame(choices=[{"delta": {}, "finish_reason": "stop"}]))
        writer.write(CHUNKED + chunk(frames[0]))
        await asyncio.sleep(GAP)
        writer.write(chunk(b"".join(frames[1:]) + DONE) + b"0\r\n\r\n")

    async with serving(chat) as (fake, url):
        options = replace(SMALL, url=url, endpoint="chat", model="given", ignore_eos=False)
        report = await bench.run(options)
    assert report.num_failed == 0
    assert report.output_tokens == 8  # no usage: frames are counted
    assert all(sample.ttft > GAP * 0.9 for sample in report.samples)
    assert len(fake.bodies[0]["messages"][0]["content"].split()) == 5
    assert fake.bodies[0]["model"] == "given"
    assert "ignore_eos" not in fake.bodies[0]
    assert not any(b"/v1/models" in head for head in fake.heads)


async def refuse(body: dict, writer: Writer) -> None:
    answer = b'{"error": {"message": "full", "type": "overloaded", "code": "queue_full"}}'
    writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


async def cut(body: dict, writer: Writer) -> None:
    writer.write(CHUNKED + chunk(token())[:-5])


async def fail_in_stream(body: dict, writer: Writer) -> None:
    error = frame(error={"message": "no", "type": "server_error", "code": None})
    writer.write(CHUNKED + chunk(token()) + chunk(error + DONE) + b"0\r\n\r\n")


async def forget_done(body: dict, writer: Writer) -> None:
    writer.write(CHUNKED + chunk(token()) + b"0\r\n\r\n")


async def hang(body: dict, writer: Writer) -> None:
    writer.write(CHUNKED + chunk(token()))
    await asyncio.sleep(0.4)


async def babble(body: dict, writer: Writer) -> None:
    writer.write(b"220 mail.example ESMTP\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (refuse, "HTTP 429 queue_full"),
        (cut, "connection cut"),
        (fail_in_stream, "in the stream: server_error"),
        (forget_done, "stream ends without [DONE]"),
        (hang, "timeout"),
        (babble, "no HTTP answer"),
    ],
)
async def test_errors_are_counted_by_kind(script: Script, kind: str) -> None:
    async with serving(script) as (_, url):
        report = await bench.run(replace(SMALL, url=url, timeout_seconds=0.2))
    assert report.errors == {kind: 4}
    assert report.num_failed == 4
    assert report.output_tokens == 0
    assert f"failed: 4 x {kind}" in str(report)


async def test_a_failed_request_spoils_no_figures() -> None:
    async def every_second(body: dict, writer: Writer) -> None:
        await (four_tokens if body["prompt"][0] % 2 else cut)(body, writer)

    async with serving(every_second) as (fake, url):
        report = await bench.run(replace(SMALL, url=url, requests=12, vocabulary=(0, 100)))
    odd = sum(body["prompt"][0] % 2 for body in fake.bodies)
    assert 0 < odd < 12
    assert report.output_tokens == 4 * odd
    assert report.errors == {"connection cut": 12 - odd}
    assert len(report.latencies()["E2E"]) == odd


async def test_arrivals_at_a_rate_wait_for_nobody() -> None:
    async with serving(four_tokens) as (fake, url):
        options = replace(SMALL, url=url, requests=30, rate=600.0, concurrency=None)
        report = await bench.run(options)
    starts = [sample.start for sample in report.samples]
    assert starts == sorted(starts)
    assert 0.01 < starts[-1] < 0.15  # 30 arrivals at 600 a second
    assert fake.most_open > 16


async def test_waiting_for_a_place_counts_from_the_arrival() -> None:
    async with serving(four_tokens) as (fake, url):
        report = await bench.run(replace(SMALL, url=url, rate=10_000.0, concurrency=1))
    assert fake.most_open == 1
    assert report.samples[-1].ttft > (3 * 3 + 1) * GAP * 0.9


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_pieces_may_end_anywhere(size: int, line_end: bytes) -> None:
    frames = [b": hello\n\n", token("a"), token("é"), token("c", "stop"), usage(3, 9), DONE]
    wire = b"".join(chunk(part.replace(b"\n", line_end)) for part in frames) + b"0\r\nX: y\r\n\r\n"
    clock = iter(range(100_000))
    body, stream = ChunkedBody(), TokenStream(lambda: next(clock))
    for start in range(0, len(wire), size):
        if data := body.feed(wire[start : start + size]):
            stream.feed(data)
    stream.close()
    assert body.is_complete
    assert len(stream.times) == 3
    assert stream.is_done
    assert not stream.error
    assert stream.usage == {"prompt_tokens": 3, "completion_tokens": 9}


def test_a_finish_without_text_is_no_token() -> None:
    stream = TokenStream(lambda: 1.0)
    stream.feed(token("a") + token("") + token("", "stop") + DONE)
    stream.close()
    assert len(stream.times) == 2  # the empty one in the middle is half a character


def test_counts_in_every_frame_do_not_hide_the_last() -> None:
    def counted(output: int) -> bytes:
        choice = {"index": 0, "text": "x", "finish_reason": None}
        return frame(choices=[choice], usage={"prompt_tokens": 1, "completion_tokens": output})

    stream = TokenStream(lambda: 1.0)
    stream.feed(counted(1) + counted(2) + usage(1, 3) + DONE)
    stream.close()
    assert stream.usage["completion_tokens"] == 3


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 7\n\n"])
def test_frames_that_are_no_objects_are_errors(data: bytes) -> None:
    stream = TokenStream(lambda: 1.0)
    stream.feed(data)
    assert stream.error


def test_bad_chunks_are_errors() -> None:
    with pytest.raises(ExchangeError):
        ChunkedBody().feed(b"zz\r\n")


def test_heads_say_how_to_read_the_body() -> None:
    status, body = parse_head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3")
    assert status == 404
    assert body.feed(b"abc") == b"abc"
    assert body.is_complete
    _, body = parse_head(b"HTTP/1.0 200 OK\r\nServer: x")
    assert isinstance(body, PlainBody)
    assert body.length is None


def test_addresses() -> None:
    server = Server.parse("https://[::1]/openai/v1/", "key")
    assert (server.host, server.port, server.prefix) == ("::1", 443, "/openai")
    request = server.request("GET", "/v1/models")
    assert request.startswith(b"GET /openai/v1/models HTTP/1.1\r\nHost: [::1]:443\r\n")
    assert b"Authorization: Bearer key\r\n" in request
    with pytest.raises(ValueError, match="no http"):
        Server.parse("127.0.0.1:8000")


def test_percentiles_are_values_that_occurred() -> None:
    ranked = [float(value) for value in range(1, 11)]
    assert [percentile(ranked, percent) for percent in (50, 90, 95, 99)] == [5.0, 9.0, 10.0, 10.0]
    assert percentile([3.0], 50) == 3.0


def test_report_of_known_samples() -> None:
    fast = Sample(0.0, 1.0, 10, 5, (0.2, 0.4, 0.5))
    slow = Sample(1.0, 4.0, 10, 11, (1.0, 2.5, 3.0))
    report = Report((fast, slow, Sample(0.0, 0.1, error="HTTP 500")))
    assert report.seconds == 4.0
    assert report.rate(report.output_tokens) == 4.0
    assert report.longest_gap == pytest.approx(1.5)
    figures = report.to_json()
    assert figures["tpot_seconds"]["max"] == pytest.approx(0.2)  # 0.8 / 4 and 2 / 10
    assert figures["ttft_seconds"]["mean"] == pytest.approx(0.6)
    assert figures["requests_per_second"] == 0.5
    assert figures["samples"][1]["frames"] == (1.0, 2.5, 3.0)
    assert "(E2E - TTFT) / (tokens - 1)" in str(report)


async def run_main(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


FEW = ("--requests", "2", "--prompt-tokens", "3", "--output-tokens", "4")


async def test_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(four_tokens) as (_, url):
        assert await run_main("--url", url, *FEW, "--json", "--api-key", "secret") == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["output_tokens"] == 8
    assert "secret" not in printed


async def test_command_fails_if_a_request_failed(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(refuse) as (_, url):
        assert await run_main("--url", url, *FEW) == 1
    assert "failed: 2 x HTTP 429 queue_full" in capsys.readouterr().out


async def test_command_says_why_nothing_can_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(four_tokens) as (_, url):
        pass
    assert await run_main("--url", url) == 2
    assert capsys.readouterr().err.startswith("chairlift bench: 127.0.0.1:")


def test_flags() -> None:
    options, as_json = parse(["--vocabulary", "3:9", "--no-ignore-eos", "--rate", "2.5"])
    assert options == Options(vocabulary=(3, 9), ignore_eos=False, rate=2.5)
    assert not as_json


@pytest.mark.parametrize(
    "flags", [["--rate", "0"], ["--requests", "0"], ["--vocabulary", "9:3"], ["--endpoint", "x"]]
)
def test_bad_flags(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(flags)
    assert raised.value.code == 2
