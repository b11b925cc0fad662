"""Answers stay exact whatever happens to notices, and abandoned requests are cancelled."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.bus import GatewayBus, UnavailableError
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import (
    Control,
    ControlKind,
    Ended,
    Ending,
    FinishReason,
    GatewayId,
    Notice,
    RequestId,
    Sampled,
    Sampling,
    SubmissionId,
    Submit,
    Subscribed,
    TokenBatch,
)
from common.metrics import GatewayMetrics
from gateway import answer as answers
from gateway import control_sender, routes, token_router
from gateway.answer import Answer, Choice
from gateway.repair import Found, repair
from gateway.token_router import TokenRouter
from tests.gateway.fake_pool import FakePool

GATEWAY = GatewayId("g0")
LENGTH = 60


def submit_of(name: str, n: int = 1) -> Submit:
    return Submit(SubmissionId(name), ((1, 2),), n, Sampling(0), Ending(1000), GATEWAY)


def script(request: RequestId) -> list[int]:
    """Another answer for each request, so that none can be taken for another's."""
    start = sum(request.encode()) * 1000
    return list(range(start, start + LENGTH))


async def read(answer: Answer) -> dict[int, list[int]]:
    """All tokens by choice. Ends come once, last, and say how many tokens there were."""
    tokens: dict[int, list[int]] = {index: [] for index in range(len(answer.choices))}
    ended = set()
    while not answer.is_over:
        for event in await answer.next(5.0):
            assert event.choice not in ended
            tokens[event.choice] += event.tokens
            if event.end is not None:
                ended.add(event.choice)
                assert event.end.kept == len(tokens[event.choice])
    return tokens


@dataclass
class Running:
    server: MemoryServer
    pool: FakePool
    router: TokenRouter

    async def answer_of(self, submit: Submit) -> dict[int, list[int]]:
        async with self.router.open(submit) as answer:
            return await read(answer)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  what it looks at knows no events
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(
    bus: Callable[[MemoryServer], MemoryBus] = MemoryBus,
) -> AsyncIterator[Running]:
    server = MemoryServer()
    pool = FakePool(server, script)
    await pool.start()
    router = TokenRouter(bus(server), GATEWAY, GatewayMetrics("model"))
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(pool.run()), tasks.create_task(router.run())]
        try:
            yield Running(server, pool, router)
        finally:
            for task in background:
                task.cancel()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed within moments."""
    monkeypatch.setattr(routes, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(token_router, "WATCH_SECONDS", 0.01)


# A choice by itself


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_notices_and_repairs_give_the_answer_from_its_start(data: st.DataObject) -> None:
    """Notices are lost, repeated and reordered; repairs bring what was there when they began."""
    length = data.draw(st.integers(0, 12))
    kept = data.draw(st.integers(0, length))
    tokens = list(range(100, 100 + length))
    end = Ended(RequestId("s.0"), kept, FinishReason.STOP)
    choice = Choice(RequestId("s.0"))
    shown: list[int] = []
    begun: tuple[int, Found] | None = None
    for _ in range(data.draw(st.integers(0, 25))):
        move = data.draw(st.sampled_from(["token", "end", "begin", "fill", "take"]))
        if move == "token" and length:
            position = data.draw(st.integers(0, length - 1))
            choice.add(position, tokens[position])
        elif move == "end":
            choice.finish(end)
        elif move == "begin" and begun is None and not choice.is_complete:
            have = choice.num_known
            committed = data.draw(st.integers(have, max(length, have)))
            begun = have, Found(tuple(tokens[have:committed]))
        elif move == "fill" and begun is not None:
            choice.fill(*begun)
            begun = None
        elif move == "take":
            was_complete = choice.is_complete
            shown += choice.take()
            assert shown == tokens[: len(shown)]
            assert not was_complete or len(shown) >= kept
    choice.fill(choice.num_known, Found(tuple(tokens[choice.num_known : kept]), end))
    before = len(shown)
    shown += choice.take()
    assert choice.is_complete
    assert not choice.wants_repair
    assert shown == tokens[: max(before, kept)]


def test_what_is_missing_is_known() -> None:
    choice = Choice(RequestId("s.0"))
    choice.add(0, 100)
    assert not choice.wants_repair
    choice.add(2, 102)
    assert choice.wants_repair
    choice.add(1, 101)
    assert not choice.wants_repair
    assert choice.take() == [100, 101, 102]
    choice.finish(Ended(choice.request, 4, FinishReason.LENGTH))
    assert choice.wants_repair
    choice.fill(3, Found((103, 104)))
    assert choice.take() == [103]
    assert choice.is_complete


def test_a_journal_that_is_gone_is_an_end() -> None:
    choice = Choice(RequestId("s.0"))
    choice.fill(0, Found((), has_journal=False))  # not read by a scheduler yet
    assert choice.end is None
    choice.add(0, 100)
    choice.fill(0, Found((), has_journal=False))  # it began before the token came
    assert choice.end is None
    choice.fill(1, Found((), has_journal=False))
    assert choice.end is not None
    assert choice.end.reason is FinishReason.ERROR


def test_what_was_dropped_is_wanted_once_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_READY", 2)
    monkeypatch.setattr(answers, "MAX_AHEAD", 1)
    choice = Choice(RequestId("s.0"))
    for position in range(5):
        choice.add(position, 100 + position)
    assert not choice.wants_repair  # there is no room
    assert choice.take() == [100, 101]
    assert choice.wants_repair
    assert choice.take() == [102]
    assert choice.wants_repair
    choice.fill(3, Found((103, 104, 105)))
    assert choice.take() == [103, 104]
    assert choice.wants_repair
    choice.fill(5, Found((105,)))
    assert choice.take() == [105]
    assert not choice.wants_repair


# With a pool


async def test_answers_of_many_choices() -> None:
    async with running() as it:
        submits = [submit_of(f"s{i}", n=3) for i in range(5)]
        results = await asyncio.gather(*map(it.answer_of, submits))
    for submit, result in zip(submits, results, strict=True):
        assert result == {i: script(r) for i, r in enumerate(submit.request_ids())}
    assert it.pool.controls == []


class Shuffled(MemoryBus):
    """Notices overtake each other."""

    async def notices(self, gateway: GatewayId) -> AsyncIterator[Notice]:
        dice = random.Random(1)
        held: list[Notice] = []
        async for notice in super().notices(gateway):
            if isinstance(notice, Subscribed):
                yield notice
                continue
            held.append(notice)
            dice.shuffle(held)
            while len(held) > 3:
                yield held.pop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("bus", [MemoryBus, Shuffled])
@pytest.mark.parametrize("seed", range(4))
async def test_notices_lost_repeated_and_reordered(bus: type[MemoryBus], seed: int) -> None:
    dice = random.Random(seed)
    async with running(bus) as it:
        it.server.copies = lambda _gateway, _notice: dice.choice([0, 0, 1, 1, 2])
        submits = [submit_of(f"s{i}", n=2) for i in range(4)]
        results = await asyncio.gather(*map(it.answer_of, submits))
    for submit, result in zip(submits, results, strict=True):
        assert result == {i: script(r) for i, r in enumerate(submit.request_ids())}


@pytest.mark.usefixtures("impatient")
async def test_no_notice_ever_arrives() -> None:
    async with running() as it:
        it.server.copies = lambda _gateway, _notice: 0
        submit = submit_of("s")
        assert await it.answer_of(submit) == {0: script(submit.request_ids()[0])}


@pytest.mark.usefixtures("impatient")
async def test_the_end_alone_is_lost() -> None:
    async with running() as it:
        it.server.copies = lambda _gateway, notice: isinstance(notice, TokenBatch)
        submit = submit_of("s")
        assert await it.answer_of(submit) == {0: script(submit.request_ids()[0])}


async def test_a_subscription_that_begins_anew_repairs_at_once() -> None:
    """Long before silence would: the limit on the test's time is below it."""
    async with running() as it:
        lost = asyncio.Event()
        it.server.copies = lambda _gateway, _notice: not lost.is_set()
        submit = submit_of("s")
        async with asyncio.timeout(1.5), it.router.open(submit) as answer:
            await answer.next(1.0)
            lost.set()
            await it.until(lambda: bool(it.pool.ends))
            it.server.resubscribe(GATEWAY)
            events = await answer.next(1.0)
        assert events[0].end is not None


async def test_a_repair_that_does_not_fit_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, and not only when somebody looks for requests that want it."""
    misfits = iter([True, True])

    async def misfit(bus: GatewayBus, starts: Mapping[RequestId, int]) -> dict[RequestId, Any]:
        return dict.fromkeys(starts) if next(misfits, False) else await repair(bus, starts)

    monkeypatch.setattr(routes, "repair", misfit)
    monkeypatch.setattr(token_router, "WATCH_SECONDS", 100.0)
    async with running() as it:
        it.server.copies = lambda _gateway, _notice: 0
        submit = submit_of("s")
        async with asyncio.timeout(1.5), it.router.open(submit) as answer:
            await it.until(lambda: bool(it.pool.ends))
            it.server.resubscribe(GATEWAY)
            assert await read(answer) == {0: script(submit.request_ids()[0])}
        assert next(misfits, None) is None


async def test_repairs_are_not_begun_for_nothing() -> None:
    async with running() as it:
        await it.answer_of(submit_of("s"))
        metrics = it.router.metrics
        assert b'chairlift_repairs_total{model_name="model"} 0.0' in metrics.exposition()


async def test_the_submit_comes_after_the_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_router, "SUBSCRIBE_SECONDS", 0.05)
    server = MemoryServer()
    router = TokenRouter(MemoryBus(server), GATEWAY, GatewayMetrics("model"))
    with pytest.raises(UnavailableError):
        async with router.open(submit_of("s")):
            pass
    assert server.stream("requests").ids == []


# Leaving and stopping


async def test_leaving_early_cancels_without_waiting() -> None:
    async with running() as it:
        async with it.router.open(submit_of("s")) as answer:
            await answer.next(1.0)
            answer.leave()
            assert await answer.next(1.0) == []
        assert it.router.num_open == 0
        await it.until(lambda: bool(it.pool.ends))
        assert [c.kind for c in it.pool.controls] == [ControlKind.CANCEL]


async def test_an_answer_that_is_over_is_not_cancelled() -> None:
    async with running() as it:
        await it.answer_of(submit_of("s", n=2))
        await asyncio.sleep(0.02)
        assert it.pool.controls == []


async def test_stop_is_sent_once_and_the_end_awaited() -> None:
    async with running() as it:
        async with it.router.open(submit_of("s")) as answer:
            await answer.next(1.0)
            it.router.stop(answer, 0, kept=1)
            it.router.stop(answer, 0, kept=1)
            events = await answer.next(1.0)
        assert [(list(event.tokens), event.end and event.end.kept) for event in events] == [([], 1)]
        await asyncio.sleep(0.02)
        assert [(c.kind, c.kept) for c in it.pool.controls] == [(ControlKind.STOP, 1)]


async def test_controls_are_sent_until_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_sender, "RETRY_SECONDS", 0.01)
    failures = iter([True, True, False])

    class Failing(MemoryBus):
        async def control(self, control: Control) -> None:
            if next(failures, False):
                raise UnavailableError("no answer")
            await super().control(control)

    async with running(Failing) as it:
        async with it.router.open(submit_of("s")):
            pass
        await it.until(lambda: bool(it.pool.controls))
        assert next(failures, None) is None


async def test_tokens_that_nobody_waits_for_are_cancelled_again() -> None:
    """A cancel that overtook its submit leaves a request that runs for nobody."""
    async with running() as it:
        now = time.monotonic()
        batch = TokenBatch((Sampled(RequestId("lost.0"), 5, 1),))
        for _ in range(3):
            it.router.receive(batch, now)
        await it.until(lambda: bool(it.pool.controls))
        it.router.receive(batch, now + 1000)
        await it.until(lambda: len(it.pool.controls) == 2)
        assert {c.target for c in it.pool.controls} == {"lost"}
        assert {(c.kind, c.gateway) for c in it.pool.controls} == {(ControlKind.DETACH, GATEWAY)}


# Joining


async def test_who_joins_is_attached_and_hears_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before silence would be noticed."""
    monkeypatch.setattr(routes, "SILENCE_SECONDS", 100.0)
    async with running() as it:
        submit, other = submit_of("s", n=2), GatewayId("g1")
        async with it.router.open(submit) as first:
            await first.next(1.0)
            router = TokenRouter(MemoryBus(it.server), other, GatewayMetrics("model"))
            journals = [await router.bus.journal(r) for r in submit.request_ids()]
            async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
                background = tasks.create_task(router.run())
                async with router.join(submit.submission_id, journals) as answer:
                    tokens = await read(answer)
                background.cancel()
        assert tokens == {i: script(r) for i, r in enumerate(submit.request_ids())}
        attached = [(c.kind, c.target, c.gateway) for c in it.pool.controls]
        assert (ControlKind.ATTACH, "s", other) in attached


async def test_who_submits_what_another_may_have_submitted_is_attached() -> None:
    async with running() as it:
        async with it.router.open(submit_of("s"), joins=True) as answer:
            await read(answer)
        controls = [(c.kind, c.target, c.gateway) for c in it.pool.controls]
        assert controls == [(ControlKind.ATTACH, "s", GATEWAY)]


async def test_two_who_are_not_equally_far_are_repaired_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as it:
        submit, (request,) = submit_of("s"), submit_of("s").request_ids()
        lost = asyncio.Event()
        it.server.copies = lambda _gateway, _notice: not lost.is_set()
        batches: list[set[str]] = []
        looked = routes.repair

        async def counting(
            bus: GatewayBus, starts: Mapping[RequestId, int]
        ) -> dict[RequestId, Any]:
            batches.append(set(starts.values()))
            return await looked(bus, starts)

        monkeypatch.setattr(routes, "repair", counting)
        async with it.router.open(submit) as first:
            events = await first.next(1.0)
            lost.set()
            await it.until(lambda: bool(it.pool.ends))
            journals = [await it.router.bus.journal(request)]
            async with it.router.join(submit.submission_id, journals) as second:
                it.router.receive(Subscribed(), time.monotonic())
                events += await first.next(1.0)
                whole = await read(second)
        assert [token for event in events for token in event.tokens] == script(request)
        assert whole == {0: script(request)}
        assert batches == [{0}]


async def test_a_journal_that_expires_before_it_is_read_is_an_end() -> None:
    async with running() as it:
        submit, (request,) = submit_of("s"), submit_of("s").request_ids()
        await it.answer_of(submit)
        await it.until(lambda: bool(it.server.expiring))
        journals = [await it.router.bus.journal(request)]
        it.server.expire()
        async with it.router.join(submit.submission_id, journals) as answer:
            (event,) = await answer.next(1.0)
        assert event.end is not None
        assert event.end.reason is FinishReason.ERROR


# Memory


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_does_not_read_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "MAX_READY", 8)
    monkeypatch.setattr(answers, "MAX_AHEAD", 4)
    async with running() as it:
        submit = submit_of("s")
        async with it.router.open(submit) as answer:
            await it.until(lambda: bool(it.pool.ends))
            await asyncio.sleep(0.1)  # several silences long
            choice = answer.choices[0]
            assert len(choice._ready) <= 8
            assert len(choice._ahead) <= 4
            assert b'repairs_total{model_name="model"} 0.0' in it.router.metrics.exposition()
            assert await read(answer) == {0: script(submit.request_ids()[0])}


async def test_routes_and_repairs_are_forgotten() -> None:
    async with running() as it:
        await asyncio.gather(*(it.answer_of(submit_of(f"s{i}", n=2)) for i in range(20)))
        it.router.receive(Subscribed(), time.monotonic())
        assert it.router._routes == {}
        assert it.router.repairs._wanted == {}
