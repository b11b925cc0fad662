"""The load client against a server whose delays and faults are known."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cli import bench
from cli.bench.load import BenchError
from cli.bench.options import Options
from tests.cli.bench_server import (
    CHUNKED,
    DONE,
    GAP,
    Script,
    Writer,
    chunk,
    four_tokens,
    frame,
    serving,
    token,
    usage,
)

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
        seconds = 0.2 if script is hang else 5.0
        report = await bench.run(replace(SMALL, url=url, timeout_seconds=seconds))
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
    assert 0.01 < starts[-1] < 0.5  # 30 arrivals at 600 a second
    assert fake.most_open > 16


async def test_waiting_for_a_place_counts_from_the_arrival() -> None:
    async with serving(four_tokens) as (fake, url):
        report = await bench.run(replace(SMALL, url=url, rate=10_000.0, concurrency=1))
    assert fake.most_open == 1
    assert report.samples[-1].ttft > (3 * 3 + 1) * GAP * 0.9


async def test_a_duration_bounds_how_long_requests_begin() -> None:
    async with serving(four_tokens) as (fake, url):
        options = replace(SMALL, url=url, requests=None, duration=5 * GAP)
        report = await bench.run(options)
    assert report.num_failed == 0
    assert all(sample.start <= 5 * GAP for sample in report.samples)
    assert report.seconds > 5 * GAP  # what has begun goes on to its end
    assert 4 <= len(fake.bodies) == len(report.samples)


async def test_a_duration_bounds_arrivals() -> None:
    async with serving(four_tokens) as (fake, url):
        options = replace(SMALL, url=url, requests=None, duration=0.1, rate=100.0, concurrency=None)
        report = await bench.run(options)
    assert 3 <= len(report.samples) <= 25  # ten, at random
    assert len(fake.bodies) == len(report.samples)


async def test_a_trace_says_what_comes_when(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,tenant,prompt_tokens,output_tokens\n7.0,a,3,4\n7.4,b,5,4\n")
    async with serving(four_tokens) as (fake, url):
        report = await bench.run(Options(url=url, trace=str(trace), rate_scale=4.0))
    assert [len(body["prompt"]) for body in fake.bodies] == [3, 5]
    assert [body["max_tokens"] for body in fake.bodies] == [4, 4]
    first, second = report.samples
    assert 0.02 < second.start - first.start < 0.39  # 0.4 s, four times as fast
    assert report.num_failed == 0


@pytest.mark.parametrize(
    ("text", "requests"), [("nothing", None), ("arrival_s,prompt_tokens\n", None)]
)
async def test_a_trace_that_is_none(tmp_path: Path, text: str, requests: int | None) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(BenchError, match=r"trace\.csv"):
        await bench.run(Options(model="m", trace=str(trace), requests=requests))


async def test_a_trace_with_too_few_requests(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,tenant,prompt_tokens,output_tokens\n7.0,a,3,4\n")
    with pytest.raises(BenchError, match="has 1 requests, not 2"):
        await bench.run(Options(model="m", trace=str(trace), requests=2))


async def test_warm_up_does_not_count_and_asks_something_else() -> None:
    async with serving(four_tokens) as (fake, url):
        report = await bench.run(replace(SMALL, url=url, warmup=3, rate=100.0))
    assert len(report.samples) == 4
    assert len({tuple(body["prompt"]) for body in fake.bodies}) == 7
    assert [sample.number for sample in report.samples] == [0, 1, 2, 3]


async def say(body: dict, writer: Writer) -> None:
    """The number of messages, or of lines of the prompt, in two frames."""
    size = len(body.get("messages") or body["prompt"].split("\n"))
    name = "delta" if "messages" in body else "text"
    pieces = [{"content": part} if name == "delta" else part for part in ("turn", str(size))]
    frames = b"".join(chunk(frame(choices=[{name: piece}])) for piece in pieces)
    writer.write(CHUNKED + frames + chunk(usage(9, 2) + DONE) + b"0\r\n\r\n")


TALK = Options(requests=2, turns=3, prompt_tokens=4, output_tokens=2, concurrency=1)


async def test_a_chat_grows_by_the_answer_that_came() -> None:
    async with serving(say) as (fake, url):
        report = await bench.run(replace(TALK, url=url, endpoint="chat"))
    assert [(s.number, s.turn) for s in report.samples] == [
        (n, t) for n in (0, 1) for t in range(3)
    ]
    first, second, third = (body["messages"] for body in fake.bodies[:3])
    assert second[:1] == first
    assert second[1] == {"role": "assistant", "content": "turn1"}
    assert third[:3] == second
    assert third[3] == {"role": "assistant", "content": "turn3"}
    assert third[4]["role"] == "user"
    assert len(third[4]["content"].split()) == 4
    assert third[4]["content"] != second[2]["content"]


async def test_a_completion_goes_on_behind_its_answer() -> None:
    async with serving(say) as (fake, url):
        await bench.run(replace(TALK, url=url))
    first, second, third = (body["prompt"] for body in fake.bodies[:3])
    assert second.startswith(first + "turn1\n")
    assert third.startswith(second + "turn2\n")


async def test_a_turn_that_fails_ends_its_conversation() -> None:
    async def fail_second(body: dict, writer: Writer) -> None:
        await (cut if len(body["messages"]) > 1 else say)(body, writer)

    async with serving(fail_second) as (_, url):
        report = await bench.run(replace(TALK, url=url, endpoint="chat"))
    assert [sample.name for sample in report.samples] == ["0", "0.1", "1", "1.1"]
    assert report.failures() == ["failed: 2 x connection cut (request 0.1, 1.1)"]


async def test_later_turns_count_from_the_end_of_the_one_before() -> None:
    async with serving(four_tokens) as (_, url):
        options = replace(TALK, url=url, requests=1, turns=2, rate=1000.0, output_tokens=4)
        first, second = (await bench.run(options)).samples
    assert second.start >= first.end


async def test_answers_of_another_length_are_noted() -> None:
    async with serving(four_tokens) as (_, url):
        report = await bench.run(replace(SMALL, url=url, output_tokens=5))
    assert report.notes() == ["note: 4 answers have another length than was asked for"]
