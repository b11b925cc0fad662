"""`./chairlift COMMAND`: a table of commands, each imported only when it is called."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from common.config import CommonSettings, GatewaySettings, SchedulerSettings, WorkerSettings, read
from common.version import VERSION

HELP = {"-h", "--help"}


@dataclass(frozen=True)
class Command:
    module: str  # with `main(arguments) -> exit status`; or a service, run as `python -m`
    summary: str
    settings: type[CommonSettings] | None = None  # of a service
    is_service: bool = False  # one that reads its flags in a way of its own


COMMANDS = {
    "up": Command("cli.up", "start everything on this machine; Ctrl-C ends it"),
    "queue": Command("cli.queue", "list what waits and runs, and why"),
    "bench": Command("cli.bench.main", "put load on an OpenAI-compatible server and measure it"),
    "simulate": Command(
        "scheduler.simulation", "run a workload through the scheduler alone", is_service=True
    ),
    "lab": Command("cli.lab.main", "show what is claimed of continuous batching, with figures"),
    "key": Command("cli.key", "make an API key"),
    "gateway": Command("gateway", "one gateway alone", GatewaySettings),
    "scheduler": Command("scheduler", "one scheduler alone", SchedulerSettings),
    "worker": Command("gpu_worker", "one worker alone", WorkerSettings),
    "health": Command("cli.health", "exit with 0 if a service of this machine makes progress"),
    "test": Command("cli.check", "run the tests; arguments go to pytest"),
    "lint": Command("cli.check", "check format, lint, import contracts and types"),
}


def main(arguments: Sequence[str]) -> int:
    name, *rest = [*arguments, ""]
    if name in ("", "-h", "--help", "help"):
        print(usage())
        return 0 if name else 2
    if name == "version":
        print(VERSION)
        return 0
    if name not in COMMANDS:
        sys.stderr.write(f"chairlift: no command {name!r}; ./chairlift --help lists them\n")
        return 2
    command, rest = COMMANDS[name], rest[:-1]
    if command.settings or command.is_service:
        if command.settings and HELP & set(rest):  # told here, without a service's packages
            read(command.settings, f"chairlift {name}", ["--help"])
        os.execv(sys.executable, [sys.executable, "-m", command.module, *rest])
    if command.module == "cli.check":
        if HELP & set(rest):
            print(f"usage: ./chairlift {name}\n\n{command.summary}")
            return 0
        rest = [name, *rest]
    status: int = import_module(command.module).main(rest)
    return status


def usage() -> str:
    lines = [f"  {name:<10} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ./chairlift COMMAND [flags]",
            "",
            *lines,
            f"  {'version':<10} print the version",
            "",
            "./chairlift COMMAND --help says more.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
