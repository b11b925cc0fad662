"""Keys: their file, and that no route and no method does without one unless it is listed."""

import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from common.api_keys import ApiKeyError, find_key, make_key, parse_keys
from common.config import SettingError
from gateway.auth import OPEN_PATHS, load_keys
from tests.gateway.serving import serving

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"]

ALICE, ALICE_LINE = make_key("alice")
BOB, BOB_LINE = make_key("bob")
KEYS = parse_keys(f"# keys\n\n{ALICE_LINE}\n  {BOB_LINE}:2.5  \n")


def test_a_file_of_keys() -> None:
    assert [(key.name, key.weight) for key in KEYS] == [("alice", 1.0), ("bob", 2.5)]
    assert find_key(KEYS, ALICE) is KEYS[0]
    assert find_key(KEYS, BOB) is KEYS[1]
    for wrong in ("", ALICE[:-1], ALICE + "x", "alice", ALICE_LINE.partition(":")[2], "\udcff"):
        assert find_key(KEYS, wrong) is None
    assert ALICE not in ALICE_LINE


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:",
        "alice:abc",
        ":" + "0" * 64,
        "a b:" + "0" * 64,
        "alice:" + "0" * 64 + ":x",
        "alice:" + "0" * 64 + ":0",
        "alice:" + "0" * 64 + ":nan",
        "alice:" + "0" * 64 + ":1:2",
        "alice:" + "g" * 64,
    ],
)
def test_a_wrong_line_is_named_and_not_shown(line: str) -> None:
    with pytest.raises(ApiKeyError, match="line 2") as raised:
        parse_keys(f"{ALICE_LINE}\n{line}")
    assert "0" * 64 not in str(raised.value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "x" * 65, "-a", "a\nb"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ApiKeyError):
        make_key(name)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_may_be_open(host: str) -> None:
    assert load_keys("", host) == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", ""])
def test_elsewhere_needs_keys(host: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="api-keys"):
        load_keys("", host)
    path = tmp_path / "keys"
    path.write_text(ALICE_LINE)
    assert [key.name for key in load_keys(str(path), host)] == ["alice"]


@pytest.mark.parametrize("content", [b"", b"# none\n", b"wrong", b"\xff", None])
def test_a_file_that_holds_no_keys_is_no_open_door(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match="api-keys"):
        load_keys(str(path), "127.0.0.1")


def test_the_program_refuses_to_be_open_to_all() -> None:
    command = [sys.executable, "-m", "gateway", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--api-keys" in done.stderr


def paths_of(app: object) -> list[str]:
    assert isinstance(app, Starlette)
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    assert len(paths) == len(app.routes)
    return [path.replace("{model:path}", "some/model") for path in paths]


@pytest.mark.parametrize("method", METHODS)
async def test_every_route_and_method_needs_a_key(method: str) -> None:
    async with serving(keys=KEYS) as it:
        closed = {"/", "/v1", "/docs", "//v1/models", "/v1/models/../../health", "/health/"}
        for path in closed | set(paths_of(it.app)) - OPEN_PATHS:
            for header in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {ALICE}"}):
                reply = await it.call(path, b"{}", method, **header).over()
                assert reply.status == 401, (path, method)
                assert reply.headers["www-authenticate"] == "Bearer"
                assert reply.json()["error"]["code"] == "invalid_api_key"
        assert it.pool.submits == []


async def test_open_paths_need_none() -> None:
    async with serving(keys=KEYS) as it:
        assert set(paths_of(it.app)) >= OPEN_PATHS
        for path in OPEN_PATHS:
            assert (await it.get(path)).status == 200


async def test_the_key_says_who_asks_whatever_the_body_says() -> None:
    async with serving(keys=KEYS) as it:
        body = {"model": it.service.model.name, "prompt": "a", "user": "bob", "max_tokens": 1}
        call = it.call("/v1/completions", body, authorization=f"bearer {ALICE}")
        assert (await call.over()).status == 200
        assert (await it.get("/metrics", authorization=f"Bearer {BOB}")).status == 200
        assert [submit.tenant for submit in it.pool.submits] == ["alice"]
