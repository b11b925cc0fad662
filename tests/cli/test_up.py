"""`up` as a person runs it: a real embedded server, and services that only stand in."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKES = Path(__file__).parent / "fakes"


def environ(tmp_path: Path) -> dict[str, str]:
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if "CHAIRLIFT" not in name}
    path = f"{FAKES}{os.pathsep}{ROOT}"
    return kept | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "XDG_RUNTIME_DIR": str(run)}


def command(tmp_path: Path, *arguments: str) -> list[str]:
    flags = ["--data-dir", str(tmp_path / "data"), "--port", "0", *arguments]
    return [sys.executable, "-m", "cli.main", "up", *flags]


def up(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One that is expected to end by itself."""
    return subprocess.run(
        command(tmp_path, *arguments),
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def serving(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The supervisor and its URL, once it is ready."""
    with subprocess.Popen(
        command(tmp_path, *arguments), env=environ(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            assert process.stdout
            word, _, url = process.stdout.readline().strip().partition(" ")
            assert word == "ready:"
            yield process, url
        finally:
            process.kill()
            watchdog.cancel()


def test_it_serves_and_ends_without_a_trace(tmp_path: Path) -> None:
    with serving(tmp_path, "--gateways=2", "--workers=2") as (process, url):
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 6
        assert url.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    assert not psutil.wait_procs(children, timeout=0)[1]
    assert not list((tmp_path / "run").iterdir())
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["lock", "logs", "redis"]


def name_of(process: psutil.Process) -> str:
    """Empty for one that has just ended, as probes of the server do."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def test_a_server_that_is_killed_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _):
        (server,) = (c for c in psutil.Process(process.pid).children() if "valkey" in name_of(c))
        server.kill()
        for _ in range(100):
            children = psutil.Process(process.pid).children()
            if any("valkey" in name_of(child) for child in children) and not server.is_running():
                break
            psutil.wait_procs([server], timeout=0.05)
        else:
            pytest.fail("no new server")
        process.terminate()
        assert process.wait(timeout=20) == 0


def test_a_second_one_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _):
        refused = up(tmp_path)
        assert refused.returncode == 2
        assert f"in use by another `up`, process {process.pid}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model", "./nothing.gguf"], "./nothing.gguf: no such directory or file"),
        (["--redis-url", "redis://127.0.0.1:1/0"], "127.0.0.1:1: no server answers"),
        (["--redis-url", "localhost"], "not a URL"),
        (["--host", "no.such.host.invalid"], "--host: cannot listen on no.such.host.invalid"),
        (["--workers", "none"], "--workers: 'none' is not a whole number"),
        (["--served-model-name", "bad"], "gateway: --served-model-name: 'bad' is bad"),
        (["--data-dir", "/proc/nothing"], "--data-dir: cannot write /proc/nothing"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], line: str) -> None:
    ended = up(tmp_path, *arguments)
    assert ended.returncode == 2
    (said,) = ended.stderr.splitlines()
    assert said.startswith("chairlift up: ")
    assert line in said


def test_a_port_in_use_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        ended = up(tmp_path, "--port", str(port))
    assert ended.returncode == 2
    line = f"--port: {port} on 127.0.0.1 is in use; name another, or 0 for any free one"
    assert ended.stderr == f"chairlift up: {line}\n"
