"""Runs all processes of one machine: starts them, again if they die, and drains them at the end."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

from cli.child import Child, Exit, Spec, Stage, backoff
from cli.output import parse_event, readable
from cli.terminal import Terminal

MAX_FAILURES = 5  # of one child in a row, before anything was ever served
CONFIGURATION_ERROR = 2  # exit status of a service whose settings are wrong
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Check = Callable[[], Awaitable[str]]  # "" if all is well, else what is not


class Supervisor:
    """`run` returns the exit status; by then every child has ended."""

    def __init__(
        self,
        specs: Sequence[Spec],
        terminal: Terminal,
        *,
        server_ready: Check,
        ready: Check,
        on_ready: Callable[[], None],
        on_drain: Callable[[], None],
    ) -> None:
        self.specs = specs
        self.terminal = terminal
        self.is_ready = False  # has been, once
        self._server_ready = server_ready
        self._ready = ready
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._children: list[Child] = []  # those started
        self._verdict: asyncio.Future[int]  # the exit status, once it is known
        self._hurry = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._verdict = loop.create_future()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        async with asyncio.TaskGroup() as tasks:
            start = tasks.create_task(self._start(tasks), name="start")
            status = await self._verdict
            start.cancel()
            self._on_drain()
            await self._drain(hurry=status != 0)
        return status

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """The server, then all others, then waits until requests are answered."""
        for of_server in (True, False):
            for spec in self.specs:
                if (spec.stage is Stage.SERVER) is of_server:
                    child = Child(spec, self._on_line, self._on_exit)
                    self._children.append(child)
                    tasks.create_task(child.run(), name=spec.name)
            await self._until(self._server_ready if of_server else self._ready)
        self.is_ready = True
        self._on_ready()

    async def _until(self, check: Check) -> None:
        """Polls until all is well, and now and then says what is not."""
        while trouble := await check():
            if self.terminal.quiet_seconds > PATIENCE_SECONDS:
                self.terminal.say(f"waiting: {trouble}")
            await asyncio.sleep(POLL_SECONDS)

    async def _drain(self, *, hurry: bool) -> None:
        """Gateways finish first; the server is last, since all others need it."""
        self._hurry = hurry or self._hurry
        for stage in Stage:
            group = [child for child in self._children if child.spec.stage is stage]
            for child in group:
                child.stop(kill=self._hurry and stage is not Stage.SERVER)
            async with asyncio.TaskGroup() as tasks:
                for child in group:
                    tasks.create_task(self._end(child), name=f"{child.spec.name}.end")

    async def _end(self, child: Child) -> None:
        """Waits for a child that was told to stop as long as it may take, then kills it."""
        try:
            async with asyncio.timeout(child.spec.grace_seconds):
                await child.ended.wait()
        except TimeoutError:
            self.terminal.say(
                f"{child.spec.name} did not end in {child.spec.grace_seconds:g} s: killed"
            )
            child.stop(kill=True)
            await child.ended.wait()

    def _signalled(self) -> None:
        if not self._verdict.done():
            self.terminal.say("draining; again to end at once")
            self._verdict.set_result(0)
            return
        self.terminal.say("ending at once")
        self._hurry = True
        for child in self._children:
            if child.spec.stage is not Stage.SERVER:
                child.stop(kill=True)

    def _on_exit(self, ended: Exit) -> None:
        if self._verdict.done():
            return
        if not self.is_ready and ended.status == CONFIGURATION_ERROR:
            self.terminal.say(ended.last_line.removeprefix("chairlift "))
            self._verdict.set_result(CONFIGURATION_ERROR)
        elif not self.is_ready and ended.failures >= MAX_FAILURES:
            self.terminal.say(f"{ended.reason}; it keeps failing, giving up")
            self._verdict.set_result(1)
        else:
            wait = backoff(ended.failures)
            self.terminal.say(
                f"{ended.reason}; starting it again" + (f" in {wait:g} s" if wait else "")
            )

    def _on_line(self, spec: Spec, line: str) -> None:
        if not notable(spec.stage, line, is_ready=self.is_ready):
            return
        event, fields = parse_event(line)
        if "percent" in fields:
            self.terminal.progress(f"{spec.name}: {event}", fields["percent"])
        else:
            self.terminal.say(f"{spec.name}: {readable(line)}")


def notable(stage: Stage, line: str, *, is_ready: bool) -> bool:
    """Whether a person at the terminal wants this log line: errors, and what loads at the start."""
    event, fields = parse_event(line)
    if not event:
        return "[error" in line or "[critical" in line  # logs as text
    if fields.get("level") in ("error", "critical"):
        return True
    return not is_ready and stage is Stage.WORKER and fields.get("level") == "info"
