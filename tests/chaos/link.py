"""A process's way to Redis: TCP on this side, the server's socket on the other; cut or frozen."""

import asyncio
from pathlib import Path

PIECE = 1 << 16  # bytes handed on at a time


class Link:
    """`open` it, then connect to `port`. A frozen one keeps what was sent, and delivers it late."""

    def __init__(self, socket: Path) -> None:
        self.port = 0
        self._socket = socket
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._num_cuts = self._num_freezes = 0  # not taken back yet
        self._flows = asyncio.Event()
        self._flows.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Every connection breaks, and none is made until `join`."""
        self._num_cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()

    def join(self) -> None:
        """Of several cuts at a time, the last one counts."""
        self._num_cuts = max(0, self._num_cuts - 1)

    def freeze(self) -> None:
        self._num_freezes += 1
        self._flows.clear()

    def thaw(self) -> None:
        self._num_freezes = max(0, self._num_freezes - 1)
        if not self._num_freezes:
            self._flows.set()

    def mend(self) -> None:
        """Whatever was done to it."""
        self._num_cuts = self._num_freezes = 0
        self._flows.set()

    async def close(self) -> None:
        """Returns once no connection is left."""
        assert self._server is not None
        self._server.close()
        self.cut()
        self._flows.set()
        while self._writers:  # noqa: ASYNC110 - a turn of the loop ends them
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._num_cuts:
            return writer.transport.abort()
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:  # the server is down
            return writer.transport.abort()
        ways = {writer, far_writer}
        self._writers |= ways
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer, ways), name="link.there")
                tasks.create_task(self._pump(far_reader, writer, ways), name="link.back")
        finally:
            self._writers -= ways
        return None

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ways: set[asyncio.StreamWriter],
    ) -> None:
        try:
            while piece := await reader.read(PIECE):
                await self._flows.wait()
                if writer.transport.is_closing():
                    break
                writer.write(piece)
                await writer.drain()
        except OSError:  # the other side is gone: so is this one
            pass
        finally:
            for way in ways:
                way.transport.abort()
