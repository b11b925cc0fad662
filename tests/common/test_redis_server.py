"""Which servers are fit, what is said of those that are not, and how we speak to them."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from common.bus import (
    ServerError,
    UnavailableError,
    WriteHead,
)
from common.redis_bus import RedisBus, client, server, wire
from common.redis_bus.client import LostError
from common.redis_bus.keys import Keys
from tests.common.conftest import lead
from tests.common.examples import (
    REQUEST,
    head,
)
from tests.valkey import ValkeyServer


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "bad Redis URL"),
        ("unix://{socket}?password=wrong", "refuses us"),
        ("unix://{socket}", "refuses us"),
    ],
)
async def test_a_wrong_address_or_password_is_said(
    valkey: ValkeyServer, url: str, reason: str
) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(ServerError, match=reason):
            await RedisBus(url.format(socket=valkey.socket), "own").connect()


async def test_nobody_there_is_said(tmp_path: object) -> None:
    redis = RedisBus(f"unix://{tmp_path}/nothing", "own")
    with pytest.raises(UnavailableError):
        await redis.connect(seconds=0.2)


def test_old_servers_are_refused_with_the_reason() -> None:
    with pytest.raises(ServerError, match=r"Redis 6.2.14 is too old: functions need 7.0"):
        server.check_version({"redis_version": "6.2.14"})
    server.check_version({"redis_version": "7.0.15"})
    server.check_version({"redis_version": "7.2.4", "valkey_version": "8.1.8"})


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"redis_version": "8.2.3"}, False),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "8.1.8"}, False),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.1"}, False),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, True),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "10.0.0"}, True),
    ],
)
def test_which_servers_need_a_rewritten_file(info: dict[str, str], expected: bool) -> None:
    assert server.keeps_torn_tail(info) is expected


async def test_an_unfixed_server_rewrites_its_file_once_a_start(
    own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "keeps_torn_tail", lambda _info: False)
    with own_server.client() as direct:
        assert direct.info("persistence")["aof_last_rewrite_time_sec"] == -1
        redis = RedisBus(own_server.url, "own")
        await redis.connect()
        assert direct.info("persistence")["aof_last_rewrite_time_sec"] >= 0
        before = direct.info("commandstats")["cmdstat_bgrewriteaof"]["calls"]
        other = RedisBus(own_server.url, "own")
        await other.connect()
        assert direct.info("commandstats")["cmdstat_bgrewriteaof"]["calls"] == before == 1
    await redis.aclose()
    await other.aclose()


class FailsOnce:
    """A server whose first rewrite of its file fails, or cannot even begin."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.rewrites = 0

    async def run(self, commands: list[tuple[str, ...]]) -> list[object]:
        if commands[0][0] == "BGREWRITEAOF":
            self.rewrites += 1
            return [self.answer if self.rewrites == 1 else b"started"]
        said = {
            "aof_rewrite_in_progress": "0",
            "aof_rewrite_scheduled": "0",
            "aof_last_rewrite_time_sec": "0" if self.rewrites else "-1",
            "aof_last_bgrewrite_status": "ok" if self.rewrites == 2 else "err",
        }
        return ["\r\n".join(f"{name}:{value}" for name, value in said.items()).encode()]


@pytest.mark.parametrize("answer", [b"started", ResponseError("Can't execute it")])
async def test_a_rewrite_that_fails_is_repeated_later(answer: object) -> None:
    """As where the disk is full: nothing is written meanwhile."""
    unfit: Any = FailsOnce(answer)
    with pytest.raises(LostError):
        await server.rewrite_append_only_file(unfit)
    assert unfit.rewrites == 1
    await server.rewrite_append_only_file(unfit)
    assert unfit.rewrites == 2


async def test_who_may_not_ask_for_a_rewrite_is_told_so() -> None:
    unfit: Any = FailsOnce(NoPermissionError("no"))
    with pytest.raises(ServerError, match="refuses us"):
        await server.rewrite_append_only_file(unfit)


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("-@write", "its default user is restricted"),
        ("resetkeys ~a*", "its default user is restricted"),
        ("nopass", "no password"),
        ("off", ""),
    ],
)
async def test_the_default_user_of_an_unfixed_server_is_looked_at(
    own_server: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rights: str,
    said: str,
) -> None:
    with own_server.client() as direct:
        direct.acl_setuser("us", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all"])
        direct.execute_command("ACL", "SETUSER", "default", *rights.split())
    url = f"unix://{own_server.socket}?username=us&password=pw"
    for is_fixed in (True, False):
        monkeypatch.setattr(server, "keeps_torn_tail", lambda _info, fixed=is_fixed: fixed)
        redis = RedisBus(url, "own")
        await redis.connect()
        await redis.aclose()
        output = capsys.readouterr().out
        assert said in output or is_fixed
        assert ("warning" in output) is (bool(said) and not is_fixed)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("appendfsync", "everysec", "may lose acknowledged writes"),
        ("appendonly", "no", "keeps no append-only file"),
        ("maxmemory-policy", "allkeys-lru", "may evict"),
        ("timeout", "0", ""),
    ],
)
async def test_what_breaks_the_promise_is_said(
    own_server: ValkeyServer,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    value: str,
    said: str,
) -> None:
    with own_server.client() as direct:
        direct.config_set(setting, value)
    redis = RedisBus(own_server.url, "own")
    await redis.connect()
    await redis.aclose()
    output = capsys.readouterr().out
    assert said in output
    assert ("warning" in output) is bool(said)


def test_both_shapes_of_replies_are_read() -> None:
    entry = [b"1-0", [b"a", b"1", b"b", b"2"]]
    expected = {b"s": [("1-0", {b"a": b"1", b"b": b"2"})]}
    assert wire.streams([[b"s", [entry]]]) == expected
    assert wire.streams({b"s": [entry]}) == expected
    assert wire.streams([[b"s", [[b"1-0", {b"a": b"1", b"b": b"2"}]]]]) == expected
    assert wire.streams(None) == {}
    assert wire.hash_fields({b"a": b"1"}) == wire.hash_fields([b"a", b"1"]) == {b"a": b"1"}


def test_commands_are_packed_as_the_protocol_has_it() -> None:
    packed = wire.pack(("XADD", b"\xff", 12, "é", ""))
    assert packed == b"*5\r\n$4\r\nXADD\r\n$1\r\n\xff\r\n$2\r\n12\r\n$2\r\n\xc3\xa9\r\n$0\r\n\r\n"


@pytest.mark.parametrize("pool", ["", "a b", "a}b", "{a}"])
def test_a_pool_whose_name_would_break_keys_is_refused(pool: str) -> None:
    with pytest.raises(ServerError):
        RedisBus("redis://localhost", pool)


async def test_pools_do_not_see_each_other(valkey: ValkeyServer) -> None:
    """Neither does one whose name is a pattern that matches another."""
    one, star = RedisBus(valkey.url, "one-pool"), RedisBus(valkey.url, "one-*")
    epoch = await lead(one)
    await lead(star)
    await one.write(epoch, [WriteHead(head())])
    assert await one.unexpired_journals() == [REQUEST]
    assert await star.unexpired_journals() == []
    assert Keys("one-*").journal(REQUEST) != Keys("one-pool").journal(REQUEST)
    for redis in (one, star):
        await redis.aclose()


async def test_more_callers_than_connections_take_turns(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = RedisBus(valkey.url, "many")
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for _ in range(200):
            tasks.create_task(redis.num_open())
    with valkey.client() as direct:
        ours = [c for c in direct.client_list() if c["name"] == "chairlift"]
    assert 0 < len(ours) <= client.MAX_CONNECTIONS
    await redis.aclose()
