"""One process of the system: started again whenever it ends, and done to whatever a fault asks."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cli.child import die_with

RESTART_SECONDS = 0.2  # from its end to its next start
LAST_BYTES = 2000  # of its log, that tell why it ended
NO_SERVER = "no Redis answers within"  # one that was cut off when it started, for half a minute
EXPECTED = {-signal.SIGKILL, -signal.SIGTERM, 0}  # SIGTERM: it was asked to end while it started


@dataclass
class Process:
    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    num_lives: int = 0
    deaths: list[str] = field(default_factory=list)  # that nobody asked for
    _process: asyncio.subprocess.Process | None = None
    _log_start: int = 0  # bytes of earlier lives

    @property
    def pid(self) -> int:
        """0: it does not run."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process and running else 0

    async def run(self) -> None:
        """Life after life, until cancelled; then it is killed."""
        parent = os.getpid()
        while True:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environ,
                    preexec_fn=lambda: die_with(parent),
                )
            self.num_lives += 1
            try:
                status = await self._process.wait()
            except asyncio.CancelledError:
                self.signal(signal.SIGKILL)
                await self._process.wait()
                raise
            words = self._last_words()
            if status not in EXPECTED and NO_SERVER not in words[-len(NO_SERVER) - 10 :]:
                self.deaths.append(f"{self.name} ended with {status}: {words}")
            await asyncio.sleep(RESTART_SECONDS)

    def has_said(self, text: str) -> bool:
        """Whether it is in the log of this life."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    def signal(self, number: signal.Signals) -> int:
        """The process that got it; 0: it does not run just now."""
        pid = self.pid
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def anonymous_mib(self) -> float:
        """Memory of its own, swapped out or not; 0 where it does not run."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return 0.0
        sizes = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "VmSwap")))
        return sum(int(size.split()[0]) for size in sizes.values()) / 1024

    def _last_words(self) -> str:
        return self.log.read_bytes()[-LAST_BYTES:].decode(errors="replace")
