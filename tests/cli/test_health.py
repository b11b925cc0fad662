"""Health is what moves, not what stands there."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6
from subprocess import DEVNULL, Popen
from time import sleep

import pytest

from cli import embedded, health, key
from cli.embedded import Embedded
from cli.first_start import main as first_start
from cli.health import gateway_trouble, scheduler_trouble, worker_trouble
from cli.redis_probe import ProbeError, connect
from common.api_keys import find_key, parse_keys
from common.config import GatewaySettings, SchedulerSettings, WorkerSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = embedded.make(tmp_path_factory.mktemp("data"), 64 << 20, None)
    made.prepare()
    with Popen(made.command, stdout=DEVNULL) as process:
        for _ in range(3000):
            try:
                with connect(made.address) as connection:
                    connection.command("PING")
                break
            except ProbeError:
                sleep(0.01)
        yield made
        process.terminate()
    made.remove()


@contextmanager
def beating(server: Embedded, hash_key: str, field: str) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        with connect(server.address) as connection:
            while not stop.wait(0.02):
                connection.command("HINCRBY", hash_key, field, "1")

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCH_SECONDS", 0.4)
    monkeypatch.setattr(health, "POLL_SECONDS", 0.1)


def test_a_scheduler_is_well_while_the_lease_beats(server: Embedded) -> None:
    settings = SchedulerSettings(redis_url=server.url, pool="a")
    assert scheduler_trouble(settings) == "no scheduler leads"
    with beating(server, "chairlift:{a}:lease", "beat"):
        assert scheduler_trouble(settings) == ""
    assert scheduler_trouble(settings) == "no scheduler leads"  # a lease that stands still


def test_a_worker_is_well_while_its_own_field_moves(server: Embedded) -> None:
    settings = WorkerSettings(redis_url=server.url, pool="b")
    with beating(server, "chairlift:{b}:workers", "box-1a2b"):
        assert worker_trouble(settings, "box") == ""
        assert worker_trouble(settings, "bo") == "no worker of bo beats"
    assert worker_trouble(settings, "box") == "no worker of box beats"


def test_no_redis_is_told() -> None:
    settings = SchedulerSettings(redis_url="redis://127.0.0.1:1/0")
    assert "no server answers" in scheduler_trouble(settings)


@pytest.mark.parametrize(("status", "trouble"), [(200, ""), (503, "loading")])
def test_a_gateway_is_well_when_it_is_ready(status: int, trouble: str) -> None:
    with answering("127.0.0.1", status) as port:
        assert gateway_trouble(GatewaySettings(port=port)) == trouble
    assert "refused" in gateway_trouble(GatewaySettings(port=1))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("localhost", "localhost"),
    ],
)
def test_a_gateway_is_asked_where_it_listens(host: str, address: str) -> None:
    with answering(address, 200) as port:
        assert gateway_trouble(GatewaySettings(host=host, port=port)) == ""


@contextmanager
def answering(address: str, status: int) -> Iterator[int]:
    """A server on this address only, which answers one request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"loading")

        def log_message(self, *_: object) -> None: ...

    class Server(HTTPServer):
        address_family = AF_INET6 if ":" in address else AF_INET
        timeout = 2.0  # a request that never comes must not keep the test

    try:
        listening = Server((address, 0), Handler)
    except OSError:  # a machine without IPv6
        pytest.skip(f"{address} cannot be had")
    with listening as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield server.server_port
        thread.join()


def test_help_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["--help"]) == 0
    assert "gateway|scheduler|worker" in capsys.readouterr().out


def test_an_unknown_service_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["elevator"]) == 2
    assert "gateway|scheduler|worker" in capsys.readouterr().err


def test_a_key_is_shown_once_and_its_line_is_a_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert key.main(["alice"]) == 0
    shown = capsys.readouterr()
    found = find_key(parse_keys(shown.out), shown.err.strip())
    assert found is not None
    assert found.name == "alice"
    assert shown.err.strip() not in shown.out
    assert key.main(["a b"]) == 2
    assert key.main([]) == 2


def test_the_first_start_makes_secrets_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first_start([str(tmp_path)]) == 0
    shown = capsys.readouterr().out.split()[-1]
    password = (tmp_path / "redis_password").read_text()
    assert first_start([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "redis_password").read_text() == password
    assert first_start([str(tmp_path), "bob"]) == 0
    keys = parse_keys((tmp_path / "api_keys").read_text())
    assert [key.name for key in keys] == ["default", "bob"]
    assert find_key(keys, shown) == keys[0]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    conf = (tmp_path / "redis.conf").read_text().splitlines()
    assert {"appendfsync always", f"requirepass {password}"} <= set(conf)
