"""The supervisor over tiny scripts: restarts, verdicts, the order of the end, nothing left."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cli.child import Exit, Spec, Stage, backoff
from cli.output import LogFile, parse_event, readable
from cli.supervisor import MAX_FAILURES, Supervisor, notable
from cli.terminal import Terminal

POLITE = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); {}; signal.pause()"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); {}; signal.pause()"


class Scene:
    """A supervisor over children that append to one file what they do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.specs: list[Spec] = []
        self.ready = asyncio.Event()
        self.notes: Path = folder / "notes"

    def add(self, name: str, code: str, stage: Stage = Stage.GATEWAY, grace: float = 5.0) -> None:
        command = (sys.executable, "-I", "-S", "-c", code)
        self.specs.append(Spec(name, stage, command, self.folder / name, os.environ, grace))

    def note(self, text: str) -> str:
        return f"open({str(self.notes)!r}, 'a').write({text + chr(10)!r})"

    def said(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  # on another process's file
                await asyncio.sleep(0.01)

    async def run(self, *, ready: Callable[[], bool] = lambda: True) -> int:
        async def server_ready() -> str:
            return ""

        async def is_ready() -> str:
            return "" if ready() else "not yet"

        supervisor = Supervisor(
            self.specs,
            Terminal(),
            server_ready=server_ready,
            ready=is_ready,
            on_ready=self.ready.set,
            on_drain=lambda: None,
        )
        async with asyncio.timeout(15):
            status = await supervisor.run()
        assert not [p for p in psutil.Process().children(recursive=True) if _is_ours(p)]
        return status


def _is_ours(process: psutil.Process) -> bool:
    try:
        return "-S" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def stop_when(scene: Scene, condition: Callable[[], bool], signals: int = 1) -> int:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.run())
        await scene.until(condition)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
    return running.result()


async def test_a_child_that_dies_is_started_again(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.add("worker-0", f"{scene.note('born')}; import sys; print('no luck'); sys.exit(7)")
    assert await stop_when(scene, lambda: len(scene.said()) >= 3) == 0
    shown = capsys.readouterr().err
    assert "worker-0 ended (exit status 7): no luck; starting it again" in shown
    assert (scene.folder / "worker-0").read_text().startswith("no luck\nno luck\n")


async def test_the_end_has_an_order(scene: Scene) -> None:
    for stage in (Stage.SERVER, Stage.SCHEDULER, Stage.GATEWAY, Stage.WORKER):
        name = stage.name.lower()
        code = f"import signal, sys\ndef end(*_):\n {scene.note(name)}; sys.exit()\n"
        code += f"signal.signal(15, end)\n{scene.note('up')}\nwhile 1: signal.pause()"
        scene.add(name, code, stage)
    assert await stop_when(scene, lambda: scene.said().count("up") == 4) == 0
    assert scene.said()[4:] == ["gateway", "worker", "scheduler", "server"]


async def test_a_child_that_does_not_end_is_killed(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.add("deaf", DEAF.format(scene.note("up")), grace=0.3)
    assert await stop_when(scene, lambda: scene.said() == ["up"]) == 0
    assert "deaf did not end in 0.3 s: killed" in capsys.readouterr().err


async def test_a_second_signal_ends_faster(scene: Scene) -> None:
    scene.add("deaf", DEAF.format(scene.note("up")), grace=60)
    scene.add("deaf-2", DEAF.format(scene.note("up")), Stage.SCHEDULER, grace=60)
    started = time.monotonic()
    assert await stop_when(scene, lambda: len(scene.said()) == 2, signals=2) == 0
    assert time.monotonic() - started < 10


async def test_a_configuration_error_ends_all_with_its_line(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.add("gateway-0", DEAF.format("pass"), grace=60)
    code = "import sys; sys.stderr.write('worker: --model: nothing there\\n'); sys.exit(2)"
    scene.add("worker-0", code, Stage.WORKER)
    assert await scene.run(ready=lambda: False) == 2
    assert capsys.readouterr().err.splitlines() == ["chairlift up: worker: --model: nothing there"]


async def test_a_child_that_never_comes_up_ends_all(scene: Scene) -> None:
    scene.add("worker-0", f"{scene.note('born')}; raise SystemExit(1)", Stage.WORKER)
    assert await scene.run(ready=lambda: False) == 1
    assert len(scene.said()) == MAX_FAILURES


async def test_once_ready_exit_2_is_a_death_like_others(scene: Scene) -> None:
    code = f"{scene.note('born')}; import sys, time; time.sleep(0.3); sys.exit(2)"
    scene.add("worker-0", code, Stage.WORKER)
    assert await stop_when(scene, lambda: len(scene.said()) >= 2) == 0


async def test_what_a_child_started_ends_with_it(scene: Scene) -> None:
    code = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-S', '-c', "
    code += "'import time; time.sleep(60)'])\n"
    code += f"open({str(scene.notes)!r}, 'a').write(f'{{child.pid}}\\n'); sys.exit(0)"
    scene.add("parent", code)
    assert await stop_when(scene, lambda: bool(scene.said())) == 0
    for orphan in scene.said():
        with contextlib.suppress(psutil.NoSuchProcess):
            await scene.until(lambda pid=int(orphan): not is_running(pid))


def is_running(pid: int) -> bool:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
        import asyncio, os, pathlib, sys
        from cli.child import Child, Spec, Stage
        code = "import time; print('up', flush=True); time.sleep(60)"
        command = (sys.executable, "-I", "-S", "-c", code)
        log = pathlib.Path({str(tmp_path / "log")!r})
        spec = Spec("x", Stage.GATEWAY, command, log, os.environ)
        child = Child(spec, lambda *_: print(child.process.pid, flush=True), lambda _: None)
        asyncio.run(child.run())
    """
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    supervisor = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, env=environ
    )
    assert supervisor.stdout
    child = psutil.Process(int(supervisor.stdout.readline()))
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    assert not psutil.wait_procs([child], timeout=5)[1]


def test_restarts_wait_longer_each_time() -> None:
    assert [backoff(failures) for failures in range(1, 8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def test_a_log_file_does_not_grow_without_bound(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", max_bytes=10)
    for number in range(10):
        log.write(b"%05d\n" % number)
    log.close()
    assert (tmp_path / "log").read_text() == "00009\n"
    assert (tmp_path / "log.1").read_text() == "00008\n"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("stage", "line", "is_ready", "wanted"),
    [
        (Stage.WORKER, '{"event": "loading weights", "level": "info"}', False, True),
        (Stage.WORKER, '{"event": "step", "level": "info"}', True, False),
        (Stage.WORKER, '{"event": "step", "level": "debug"}', False, False),
        (Stage.GATEWAY, '{"event": "GET /", "level": "info"}', False, False),
        (Stage.GATEWAY, '{"event": "lost", "level": "error"}', True, True),
        (Stage.SCHEDULER, "12:00:00 [error    ] lost", True, True),
        (Stage.SERVER, "1:M * Ready to accept connections", False, False),
    ],
)
def test_what_the_terminal_shows(stage: Stage, line: str, is_ready: bool, wanted: bool) -> None:
    assert notable(stage, line, is_ready=is_ready) is wanted


def test_events_are_readable() -> None:
    line = '{"event": "loading", "level": "info", "timestamp": "x", "layers": 30}'
    assert readable(line) == "loading layers=30"
    assert readable("ValueError: no") == "ValueError: no"
    for text in ("[1]", "3", "{}", "null", '{"event"', ""):
        assert parse_event(text) == ("", {})


def test_the_reason_names_a_signal() -> None:
    assert Exit("w", -9, "step 7", 1).reason == "w ended (SIGKILL)"  # not by what it said last
    assert Exit("w", -6, "bad free", 1).reason == "w ended (SIGABRT): bad free"
    assert Exit("w", 1, "", 1).reason == "w ended (exit status 1)"
