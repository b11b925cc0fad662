"""The embedded server: its data survives, its socket and password do not."""

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli import embedded
from cli.embedded import Embedded
from cli.redis_probe import Address, ProbeError, Reply, check, connect, parse_url


@contextmanager
def running(server: Embedded) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(server.command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_up(server)
            yield process
        finally:
            process.kill()


def wait_until_up(server: Embedded) -> None:
    for _ in range(3000):
        try:
            check(server.address)
        except ProbeError:
            time.sleep(0.01)
        else:
            return
    pytest.fail("the server does not start")


@contextmanager
def made(data_dir: Path, runtime_dir: Path) -> Iterator[Embedded]:
    server = embedded.make(data_dir, 64 << 20, str(runtime_dir))
    server.prepare()
    try:
        yield server
    finally:
        server.remove()


def ask(server: Embedded, *words: str) -> Reply:
    with connect(server.address) as connection:
        return connection.command(*words)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """One whose name makes trouble, and whose path is too long for a socket."""
    path = tmp_path / ('a "quoted" \\ path ' + "x" * 100)
    path.mkdir()
    return path


@pytest.fixture
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def test_what_was_acknowledged_survives_a_kill(data_dir: Path, runtime_dir: Path) -> None:
    with made(data_dir, runtime_dir) as server, running(server):
        for number in range(100):
            ask(server, "XADD", "s", f"{number + 1}-0", "n", str(number))
        passwords = {server.password}
    with made(data_dir, runtime_dir) as server, running(server):
        assert ask(server, "XLEN", "s") == 100
        assert server.password not in passwords


def test_it_is_set_up_not_to_lose_or_grow(data_dir: Path, runtime_dir: Path) -> None:
    wanted = {
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory": str(64 << 20),
        "maxmemory-policy": "noeviction",
        "auto-aof-rewrite-percentage": "100",
        "port": "0",
        "save": "",
    }
    with made(data_dir, runtime_dir) as server, running(server):
        for name, value in wanted.items():
            assert ask(server, "CONFIG", "GET", name) == [name.encode(), value.encode()]
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.run_dir.stat().st_mode) == 0o700
        for name in ("redis-url", "redis-cli"):
            assert not stat.S_IMODE((data_dir / name).stat().st_mode) & 0o077
        assert parse_url((data_dir / "redis-url").read_text().strip()) == server.address


def test_nobody_enters_without_the_password(data_dir: Path, runtime_dir: Path) -> None:
    with made(data_dir, runtime_dir) as server, running(server):
        with pytest.raises(ProbeError, match="NOAUTH"):
            check(Address(path=str(server.socket)))
        with pytest.raises(ProbeError, match="WRONGPASS"):
            check(Address(path=str(server.socket), password="no"))


def test_only_the_data_is_left(data_dir: Path, runtime_dir: Path) -> None:
    with made(data_dir, runtime_dir) as server, running(server):
        ask(server, "SET", "k", "v")
    assert [path.name for path in data_dir.iterdir()] == ["redis"]
    assert not list(runtime_dir.iterdir())


def test_the_socket_folder_of_a_killed_run_is_removed(data_dir: Path, runtime_dir: Path) -> None:
    first = embedded.make(data_dir, 64 << 20, str(runtime_dir))
    first.prepare()  # and never removed
    with made(data_dir, runtime_dir) as server:
        assert list(runtime_dir.iterdir()) == [server.run_dir]


def test_a_note_of_another_folder_removes_nothing(data_dir: Path, runtime_dir: Path) -> None:
    precious = runtime_dir / "precious"
    precious.mkdir()
    (data_dir / "run-dir").write_text(f"{precious}\n")
    with made(data_dir, runtime_dir):
        pass
    assert precious.exists()


def test_a_socket_path_fits_whatever_the_runtime_folder(data_dir: Path) -> None:
    with made(data_dir, data_dir) as server:  # itself too long
        assert len(os.fsencode(server.socket)) < 108
        assert server.run_dir.parent != data_dir


def test_no_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"127\.0\.0\.1:1: no server answers"):
        check(Address(port=1))
    with pytest.raises(ProbeError, match="no server answers"):
        check(Address(path=str(tmp_path / "none")))


@pytest.mark.parametrize("url", ["", "localhost", "http://h", "redis://h:port", "redis://h/x"])
def test_a_bad_url_is_told(url: str) -> None:
    with pytest.raises(ProbeError, match="not a URL"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", Address(host="h")),
        ("redis://:p%40@h:7/3", Address(host="h", port=7, password="p@", db=3)),
        ("rediss://u:p@h", Address(host="h", user="u", password="p", is_tls=True)),
        ("unix:///a/b?password=p&db=2", Address(path="/a/b", password="p", db=2)),
    ],
)
def test_urls(url: str, address: Address) -> None:
    assert parse_url(url) == address
