"""The flags of `./chairlift up`: its own, and those of all services for whom they concern."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from types import MappingProxyType
from typing import Any

from common.config import (
    GatewaySettings,
    SchedulerSettings,
    SettingError,
    UpSettings,
    WorkerSettings,
    flag,
    make_parser,
    values,
)

PROGRAM = "chairlift up"
SERVICES: dict[str, type[Any]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
}
HIDDEN = ("listen_fd",)  # the supervisor's own business
Specs = Sequence["Field[Any]"]


@dataclass(frozen=True)
class Options:
    up: UpSettings
    gateway: GatewaySettings
    scheduler: SchedulerSettings
    worker: WorkerSettings
    given: Mapping[str, str]  # flags by field name, as text; variables are inherited instead

    def flags(self, service: str, changes: Mapping[str, object]) -> list[str]:
        """A service's command line: the flags that were given and concern it, and the changes."""
        names = [spec.name for spec in fields(SERVICES[service]) if spec.name != "redis_url"]
        chosen = {name: text for name, text in self.given.items() if name in names}
        chosen |= {name: str(value) for name, value in changes.items() if name in names}
        # With `=`, a value may begin with a dash.
        return [f"{flag(name)}={value}" for name, value in chosen.items()]


def read_options(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Exits with code 2 and one line where a value is bad."""
    parser = make_parser(PROGRAM, UpSettings.__doc__ or "", groups())
    parsed = vars(parser.parse_args(arguments))
    given = {name: text for name, text in parsed.items() if text is not None}
    try:
        return Options(
            UpSettings(**values(fields(UpSettings), given, environ)),
            GatewaySettings(**values(fields(GatewaySettings), given, environ)),
            SchedulerSettings(**values(fields(SchedulerSettings), given, environ)),
            WorkerSettings(**values(fields(WorkerSettings), given, environ)),
            given,
        )
    except SettingError as error:
        parser.error(str(error))


def groups() -> dict[str, Specs]:
    """Every field once, under the names of those that it concerns."""
    own = {spec.name for spec in fields(UpSettings)}
    found: dict[str, dict[str, Field[Any]]] = {}  # by field name, then by service
    for service, kind in SERVICES.items():
        for spec in fields(kind):
            if spec.name not in own and spec.name not in HIDDEN:
                found.setdefault(spec.name, {})[service] = spec
    titled: dict[str, list[Field[Any]]] = {"up": list(fields(UpSettings))}
    for of_services in found.values():
        title = "all" if len(of_services) == len(SERVICES) else " and ".join(of_services)
        titled.setdefault(title, []).append(_merged(of_services))
    return dict(titled)


def _merged(of_services: Mapping[str, "Field[Any]"]) -> "Field[Any]":
    """One field for the help, also where services mean different things by the name."""
    first, *others = of_services.values()
    if all(spec.metadata["text"] == first.metadata["text"] for spec in others):
        return first
    texts = [f"{service}: {spec.metadata['text']}" for service, spec in of_services.items()]
    merged = copy.copy(first)
    merged.metadata = MappingProxyType({**first.metadata, "text": "; ".join(texts)})
    return merged
