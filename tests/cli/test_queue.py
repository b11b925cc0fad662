"""The listing says who waits and why, and the commands land in `control`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli import queue, queue_table
from common.bus import Cursors, SetStatus
from common.messages import Control, ControlKind
from scheduler.core.decision import Reason
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
