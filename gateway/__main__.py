"""`python -m gateway`: reads the settings, loads the tokenizer, and serves until told to stop.

The first SIGTERM or SIGINT drains; a second one ends the running answers at once.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import structlog
import uvloop

from common import log as logs
from common.api_keys import ApiKey
from common.bus import BusError
from common.chat_template import ChatTemplate
from common.config import GatewaySettings, SettingError, read
from common.model_files import ModelFilesError, locate
from common.redis_bus import RedisBus
from common.tokenizer import Tokenizer
from gateway.app import build_app
from gateway.auth import load_keys
from gateway.http_server import Server, make_server
from gateway.intake import Model
from gateway.parameters import ApiLimits
from gateway.service import GatewayService, new_gateway_id

PROGRAM = "chairlift gateway"
LINGER_SECONDS = 1.0  # after SIGTERM, with /ready at 503, before the port is closed
SWITCH_SECONDS = 0.001  # for which a thread that tokenises may keep the event loop from running
OVERTIME_SECONDS = 5  # for error events to reach their clients when draining is over

log = structlog.get_logger()


def main() -> None:
    settings = read(GatewaySettings, PROGRAM)
    sys.setswitchinterval(SWITCH_SECONDS)
    logs.setup(settings.log_level, settings.log_format)
    try:
        keys = load_keys(settings.api_keys, settings.host)
        listener = listen(settings)
        model = load_model(settings)
        bus = RedisBus(settings.redis_url, settings.pool)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, keys, listener, model, bus))
    except (SettingError, ModelFilesError, BusError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        raise SystemExit(2) from None


def load_model(settings: GatewaySettings) -> Model:
    files = locate(settings.model, Path(settings.data_dir))
    name = settings.served_model_name or files.name
    return Model(
        name=name,
        created=int(datetime.now(UTC).timestamp()),
        context_length=files.context_length,
        end_tokens=files.end_tokens,
        tokenizer=Tokenizer.load(files),
        template=ChatTemplate.load(files),
        limits=ApiLimits(name, files.vocab_size, max_choices=settings.max_choices),
    )


def listen(settings: GatewaySettings) -> socket.socket:
    """The socket to accept from: inherited, or bound so that other gateways can share the port."""
    if settings.listen_fd >= 0:
        return socket.socket(fileno=settings.listen_fd)
    host, port = settings.host, settings.port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as on_failure:
            listener = on_failure.enter_context(socket.socket(family, kind, proto))
            # Shared only with sockets that set SO_REUSEPORT too, and belong to the same user.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            on_failure.pop_all()
    except OSError as error:
        raise SettingError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


async def serve(
    settings: GatewaySettings,
    keys: tuple[ApiKey, ...],
    listener: socket.socket,
    model: Model,
    bus: RedisBus,
) -> None:
    await bus.connect()
    service = GatewayService(bus, new_gateway_id(), model, settings)
    server = make_server(build_app(service, keys), int(settings.drain_seconds) + OVERTIME_SECONDS)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(service.run(), name="gateway.service")
            ending = tasks.create_task(end(service, server), name="gateway.end")
            await service.monitor.look_first()  # who connects meanwhile waits, and is not refused
            log.info(
                "listening",
                gateway=service.gateway,
                port=listener.getsockname()[1],
                model=model.name,
            )
            await server.serve(sockets=[listener])
            running.cancel()
            ending.cancel()
    finally:
        await service.leave()
        await bus.aclose()


async def end(service: GatewayService, server: Server) -> None:
    """Wait for a signal; then drain."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    first = await signals.get()
    log.info("draining", signal=first.name, answers=service.router.num_open)
    async with asyncio.TaskGroup() as tasks:
        drain = tasks.create_task(service.drain(), name="gateway.drain")
        if first == signal.SIGTERM:
            await asyncio.sleep(LINGER_SECONDS)
        server.should_exit = True
        await signals.get()
        drain.cancel()
        service.cut_off()


if __name__ == "__main__":
    main()
