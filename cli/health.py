"""`./chairlift health SERVICE`: whether a service of this machine makes progress; for containers.

Settings come from the same variables as the service's own.
"""

import http.client
import sys
import time
from collections.abc import Callable, Sequence
from socket import gethostname

from cli.listening import ANYWHERE
from cli.redis_probe import ProbeError, Reply, connect, parse_url
from common.config import CommonSettings, GatewaySettings, SchedulerSettings, WorkerSettings, read

WATCH_SECONDS = 5.0  # in which a beat must move; services beat about twice a second
POLL_SECONDS = 0.3

USAGE = "usage: ./chairlift health gateway|scheduler|worker [flags of the service]"

Sample = Callable[[Callable[..., Reply]], Reply]  # what moves while the service lives


def main(arguments: Sequence[str]) -> int:
    """Prints why not, if not. Exit status 0: well; 1: not; 2: no such service."""
    service, *rest = [*arguments, ""]
    program = f"chairlift health {service}"
    match service:
        case "-h" | "--help":
            print(USAGE)
            return 0
        case "gateway":
            trouble = gateway_trouble(read(GatewaySettings, program, rest[:-1]))
        case "scheduler":
            trouble = scheduler_trouble(read(SchedulerSettings, program, rest[:-1]))
        case "worker":
            trouble = worker_trouble(read(WorkerSettings, program, rest[:-1]), gethostname())
        case _:
            sys.stderr.write(f"{USAGE}\n")
            return 2
    print(trouble or "well")
    return 1 if trouble else 0


def gateway_trouble(settings: GatewaySettings) -> str:
    """Whether requests are answered; "" if so."""
    host = ANYWHERE.get(settings.host, settings.host)
    connection = http.client.HTTPConnection(host, settings.port, timeout=WATCH_SECONDS)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        return "" if answer.status == 200 else answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{host}, port {settings.port}: {error}"
    finally:
        connection.close()


def scheduler_trouble(settings: SchedulerSettings) -> str:
    """Whether some scheduler leads: one that stands by has nothing to show."""
    key = _key(settings, "lease")
    return _watch(settings, lambda command: command("HGET", key, "beat"), "no scheduler leads")


def worker_trouble(settings: WorkerSettings, host: str) -> str:
    """Whether a worker of this host beats: their names begin with the host's."""

    def beats(command: Callable[..., Reply]) -> Reply:
        entries = command("HGETALL", _key(settings, "workers"))
        assert isinstance(entries, list)
        pairs = zip(entries[::2], entries[1::2], strict=True)
        own = f"{host}-".encode()
        return [hello for name, hello in pairs if isinstance(name, bytes) and name.startswith(own)]

    return _watch(settings, beats, f"no worker of {host} beats")


def _key(settings: CommonSettings, name: str) -> str:
    return f"chairlift:{{{settings.pool}}}:{name}"


def _watch(settings: CommonSettings, sample: Sample, trouble: str) -> str:
    """`trouble` unless what is sampled is there and changes."""
    until = time.monotonic() + WATCH_SECONDS
    try:
        with connect(parse_url(settings.redis_url)) as connection:
            first = sample(connection.command)
            while time.monotonic() < until:
                time.sleep(POLL_SECONDS)
                now = sample(connection.command)
                if now and now != first:
                    return ""
                first = now
    except ProbeError as error:
        return str(error)
    return trouble


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
