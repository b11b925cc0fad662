"""The listing says who waits and why, and the commands land in `control`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli import queue, queue_table
from common.bus import AddTimeline, Cursors, SetStatus, WriteEnd, WriteHead
from common.messages import Control, ControlKind, RequestId
from scheduler.core.decision import Reason
from tests.common.examples import end, head, submit
from tests.valkey import ValkeyServer

STATUS: dict[str, Any] = {
    "summary": {
        "num_running": 1,
        "num_waiting": 1,
        "tokens_per_second": 81.5,
        "steps": 7,
        "epoch": 2,
    },
    "workers": [
        {
            "worker": "w-1",
            "device": "cpu",
            "running": 1,
            "waiting": 1,
            "free_blocks": 3,
            "num_blocks": 64,
        }
    ],
    "running": [
        {
            "request": "chat-1.0",
            "state": "RUNNING",
            "tenant": "alice",
            "prompt": 12,
            "output": 3,
            "blocks": 1,
            "reason": None,
        }
    ],
    "waiting": [{"request": "chat-2.0", "reason": "no_blocks"}],
}


def test_the_listing_explains_itself() -> None:
    text = "\n".join(queue_table.describe(STATUS))
    assert "1 running, 1 waiting, 81.5 tokens/s" in text
    assert "3/64" in text
    running, waiting = (next(x for x in text.splitlines() if r in x) for r in ("chat-1", "chat-2"))
    assert running.split()[:3] == ["chat-1.0", "runs", "alice"]
    assert "too few cache blocks" in waiting


def test_every_reason_has_a_sentence() -> None:
    assert set(Reason) <= set(queue_table.WHY)


def test_an_empty_pool_is_described_too() -> None:
    assert queue_table.describe({})[0].startswith("0 running, 0 waiting")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cancel", "chat-1"], Control(ControlKind.CANCEL, "chat-1")),
        (["cancel", "tenant:a b"], Control(ControlKind.CANCEL, "tenant:a b")),
        (["hold", "chat-1.0"], Control(ControlKind.HOLD, "chat-1.0")),
        (["release", "chat-1"], Control(ControlKind.RELEASE, "chat-1")),
        (["release", "worker:w-1"], Control(ControlKind.RELEASE, "worker:w-1")),
        (["priority", "chat-1", "3"], Control(ControlKind.PRIORITY, "chat-1", priority=3)),
        (["priority", "tenant:t", "-3"], Control(ControlKind.PRIORITY, "tenant:t", priority=-3)),
        (["drain", "worker:w-1"], Control(ControlKind.DRAIN, "worker:w-1")),
        (["drain", "tenant:t"], Control(ControlKind.DRAIN, "tenant:t")),
        (["weight", "tenant:t", "2.5"], Control(ControlKind.WEIGHT, "tenant:t", weight=2.5)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_commands_reach_the_scheduler(
    valkey: ValkeyServer,
    pool: str,
    redis_bus: Callable[[], Any],
    arguments: list[str],
    expected: Control,
) -> None:
    bus = redis_bus()
    await bus.connect()
    where = ["--redis-url", valkey.url, "--pool", pool]
    assert await asyncio.to_thread(queue.main, [*where, *arguments]) == 0
    [(_, control)] = (await bus.news(Cursors(), 0)).controls
    assert control == expected
    await bus._redis.call("DEL", f"chairlift:{{{pool}}}:control")


@pytest.mark.parametrize(
    "arguments",
    [
        ["drain", "chat-1"],
        ["cancel", "worker:w"],
        ["weight", "worker:w", "2"],
        ["hold", "worker:w"],
    ],
)
async def test_targets_that_make_no_sense_are_one_clear_line(
    valkey: ValkeyServer, pool: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--redis-url", valkey.url, "--pool", pool]
    assert await asyncio.to_thread(queue.main, [*where, *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"chairlift queue: {arguments[0]} takes ")


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "x"])
def test_a_weight_is_a_positive_number(weight: str) -> None:
    with pytest.raises(SystemExit) as exit_info:
        queue.main(["weight", "tenant:t", weight])
    assert exit_info.value.code == 2


async def test_a_listing_without_a_leader_says_so(
    valkey: ValkeyServer,
    pool: str,
    redis_bus: Callable[[], Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bus = redis_bus()
    await bus.connect()
    lease = await bus.lease_take("s", await bus.lease())
    await bus.write(lease.epoch, [SetStatus(k, orjson.dumps(v)) for k, v in STATUS.items()])
    arguments = ["--redis-url", valkey.url, "--pool", pool]
    assert await asyncio.to_thread(queue.main, arguments) == 1
    assert "No scheduler leads" in capsys.readouterr().out


async def test_variables_are_those_of_the_services(
    valkey: ValkeyServer,
    pool: str,
    redis_bus: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the containers, where a file holds the server's address."""
    bus = redis_bus()
    await bus.connect()
    (tmp_path / "url").write_text(valkey.url)
    monkeypatch.setenv("CHAIRLIFT_REDIS_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("CHAIRLIFT_POOL", pool)
    assert await asyncio.to_thread(queue.main, ["cancel", "chat-1"]) == 0
    [(_, control)] = (await bus.news(Cursors(), 0)).controls
    assert control.target == "chat-1"
    await bus._redis.call("DEL", f"chairlift:{{{pool}}}:control")


def test_a_variable_that_cannot_be_read_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAIRLIFT_REDIS_URL", raising=False)
    monkeypatch.setenv("CHAIRLIFT_REDIS_URL_FILE", "/nowhere")
    assert queue.main([]) == 2
    assert capsys.readouterr().err.startswith("chairlift queue: CHAIRLIFT_REDIS_URL_FILE: ")


def test_no_server_is_one_clear_line(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAIRLIFT_REDIS_URL", raising=False)
    assert queue.main(["--data-dir", str(tmp_path)]) == 2
    assert "no `./chairlift up` is running" in capsys.readouterr().err


ENTRIES = [
    {
        **{"at": 1.0, "worker": "w-1", "step": 1, "tokens": 12, "budget": 64},
        **{"chunks": [["chat-1.0", 12]], "admitted": [["chat-1.0", 0]], "preempted": []},
        **{"passed": [["chat-2.0", "no_seat"]], "came": [["chat-1.0", "alice", 12, 9, 0]]},
        **{"ended": [], "seconds": [], "running": 1, "waiting": 1, "free_blocks": 3},
    },
    {
        **{"at": 1.01, "worker": "w-1", "step": 2, "tokens": 1, "budget": 64},
        **{"chunks": [["chat-1.0", 1]], "admitted": [], "preempted": [], "passed": []},
        **{"came": [], "ended": [["chat-1.0", 9, "length"]], "seconds": [[1, 0.0123]]},
        **{"running": 1, "waiting": 0, "free_blocks": 3},
    },
]


async def test_the_timeline_is_a_table_or_lines_to_replay(
    valkey: ValkeyServer,
    pool: str,
    redis_bus: Callable[[], Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bus = redis_bus()
    await bus.connect()
    lease = await bus.lease_take("s", await bus.lease())
    shown = [AddTimeline(i, orjson.dumps(entry)) for i, entry in enumerate(ENTRIES, 1)]
    await bus.write(lease.epoch, shown)
    where = ["--redis-url", valkey.url, "--pool", pool, "timeline"]
    assert await asyncio.to_thread(queue.main, [*where, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [orjson.loads(line) for line in lines] == ENTRIES
    assert await asyncio.to_thread(queue.main, [*where, "--json", "--last", "1"]) == 0
    assert [orjson.loads(line) for line in capsys.readouterr().out.splitlines()] == ENTRIES[1:]
    assert await asyncio.to_thread(queue.main, where) == 0
    heads, first, second = capsys.readouterr().out.splitlines()
    assert heads.split()[:4] == ["ENTRY", "AT", "WORKER", "STEP"]
    assert {"w-1", "12/64", "12.3", "chat-2.0:", "no_seat"} <= set(first.split())
    assert "1/64" in second.split()


async def test_why_reads_the_status_and_then_the_journal(
    valkey: ValkeyServer,
    pool: str,
    redis_bus: Callable[[], Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bus = redis_bus()
    await bus.connect()
    lease = await bus.lease_take("s", await bus.lease())
    row = {
        **{"request": "a.0", "worker": "", "state": "WAITING", "tenant": "t", "position": 0},
        **{"preemptions": 0, "reason": "no_worker", "blocker": None, "missing": 0},
    }
    writes = [SetStatus("waiting", orjson.dumps([row])), WriteHead(head(RequestId("b.0")))]
    writes.append(WriteEnd(0, end(0, RequestId("b.0")), ()))
    await bus.write(lease.epoch, writes)
    await bus.submit(submit("c"))
    where = ["--redis-url", valkey.url, "--pool", pool, "why"]
    told = {}
    for target in ("a", "b", "b.0", "c", "c.0", "d"):
        code = await asyncio.to_thread(queue.main, [*where, target])
        told[target] = (code, capsys.readouterr().out)
    assert told["a"][1].startswith("a.0 waits: there is no worker.")
    assert "No scheduler leads" in told["a"][1]
    assert told["b"] == told["b.0"] == (0, "b.0 has ended: length, 0 tokens of answer.\n")
    assert told["c"] == (0, "c was accepted, and no scheduler has read it yet.\n")
    assert told["c.0"][0] == 0
    assert told["d"][0] == 1
    assert "unknown" in told["d"][1]
    await bus._redis.call(
        "DEL", *(f"chairlift:{{{pool}}}:{k}" for k in ("requests", "journal:b.0"))
    )
