"""What `./chairlift simulate` is told: the settings of scheduler and worker, and its own."""

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from types import MappingProxyType
from typing import Any

from common.config import (
    SchedulerSettings,
    SettingError,
    WorkerSettings,
    make_parser,
    setting,
    values,
)

PROGRAM = "chairlift simulate"
OF_SCHEDULER = {
    "batching",
    "prefill",
    "kv",
    "reservation",
    "preemption",
    "policy",
    "aging_seconds",
    "ttft_target_ms",
    "tenant_weights",
    "prefix_cache",
    "itl_target_ms",
    "max_step_tokens",
    "max_running",
    "depth",
}
OF_WORKER = {"num_blocks", "block_size", "max_model_len", "max_rows", "step_ms", "token_us"}


@dataclass(frozen=True)
class SimulationSettings:
    """Runs the real scheduler on a virtual clock, and says what comes of a workload."""

    workload: str = setting(
        "", "file: a trace of Azure or Mooncake, CSV with tenants, or our timeline; empty: made up"
    )
    requests: int = setting(
        0, "requests; a shorter file is repeated; 0: all of a file, 1000 made up", minimum=0
    )
    duration: float = setting(0.0, "seconds in which requests arrive; 0: all do", minimum=0)
    stop_seconds: float = setting(0.0, "when the clock stops; 0: when all have ended", minimum=0)
    rate_scale: float = setting(1.0, "arrivals of a file come so many times as fast", minimum=1e-6)
    rate: float = setting(1.0, "made up: arrivals a second", minimum=1e-6)
    arrivals: str = setting(
        "poisson", "made up: times between arrivals", choices=("poisson", "bursty", "even")
    )
    burstiness: float = setting(
        3.0, "arrivals=bursty: standard deviation of gaps by their mean", minimum=0.01
    )
    prompt_tokens: str = setting(
        "lognormal:256:0.8", "made up: N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA"
    )
    output_tokens: str = setting("lognormal:128:0.8", "made up: likewise")
    prefix_tokens: int = setting(0, "made up: tokens that all prompts of a tenant share", minimum=0)
    tenants: str = setting("", "made up: tenants by share of requests, as `alice=3,bob=1`")
    priorities: str = setting("", "made up: priorities by share of requests, as `0=9,5=1`")
    max_tokens: int = setting(
        0, "what the scheduler believes that answers may take; 0: what they will", minimum=0
    )
    seed: int = setting(0, "of all that is made up")
    workers: int = setting(1, "workers, all alike", minimum=1, maximum=1024)
    num_host_blocks: int = setting(
        0, "preemption=swap: blocks in host memory of a worker; 0: as in its cache", minimum=0
    )
    cost: str = setting(
        "constant",
        "how long steps take: constant, linear, embedded, h200-8b, a10g-7b, or a JSON file",
    )
    coefficients: str = setting("", "cost=linear: seconds, as `step=0.01,token=1e-5`")
    ttft_goal: float = setting(0.0, "seconds to the first token of a good request", minimum=0)
    tpot_goal: float = setting(0.0, "seconds a token of a good request", minimum=0)
    timeline_from: int = setting(1, "first iteration that --timeline draws", minimum=1)
    timeline_steps: int = setting(80, "iterations that --timeline draws", minimum=1, maximum=1000)
    timeline_rows: int = setting(40, "requests that --timeline draws", minimum=1)


@dataclass(frozen=True)
class Options:
    scheduler: SchedulerSettings
    worker: WorkerSettings
    simulation: SimulationSettings


@dataclass(frozen=True)
class Command:
    """What is to be simulated, and how it is shown."""

    cases: Mapping[str, Options]
    as_json: bool = False
    by_request: bool = False
    by_tenant: bool = False
    draws: bool = False
    checks: bool = False
    calibrate: str = ""  # a recorded timeline: fit a cost model to it, simulate nothing


def groups() -> dict[str, list["Field[Any]"]]:
    return {
        "workload, cost and what is shown": list(fields(SimulationSettings)),
        "scheduler": [spec for spec in fields(SchedulerSettings) if spec.name in OF_SCHEDULER],
        "worker": [_unbounded(spec) for spec in fields(WorkerSettings) if spec.name in OF_WORKER],
    }


def _unbounded(spec: "Field[Any]") -> "Field[Any]":
    """Without the limits that kernels set."""
    free = copy.copy(spec)
    free.metadata = MappingProxyType({**spec.metadata, "maximum": None})
    return free


def make_options(given: Mapping[str, str | None], environ: Mapping[str, str]) -> Options:
    """Raises SettingError."""
    own, of_scheduler, of_worker = groups().values()
    return Options(
        SchedulerSettings(**values(of_scheduler, given, environ)),
        WorkerSettings(**values(of_worker, given, environ)),
        SimulationSettings(**values(own, given, environ)),
    )


def parser() -> argparse.ArgumentParser:
    made = make_parser(PROGRAM, SimulationSettings.__doc__ or "", groups())
    shown = made.add_argument_group("more")
    shown.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME:key=value,…",
        help="one column of the table: settings that differ from the others given; repeat it",
    )
    for name, text in (
        ("json", "print JSON"),
        (
            "by-request",
            "with --json: of each request name, tenant, when it came, had its first and its last "
            "token, and its tokens of prompt and answer",
        ),
        ("by-tenant", "also a table of tenants for each case"),
        ("timeline", "also draw iterations: a row a request, a column an iteration"),
        ("check", "check all invariants of the scheduler after each event: slow"),
    ):
        shown.add_argument(f"--{name}", action="store_true", help=text)
    shown.add_argument(
        "--calibrate", default="", metavar="FILE", help="fit cost=linear to a recorded timeline"
    )
    return made


def read_command(arguments: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Exits with code 2 and one line where a value is bad."""
    made = parser()
    given = vars(made.parse_args(arguments))
    try:
        if not given["case"]:
            cases = {"simulated": make_options(given, environ)}
        else:
            cases = {
                name: make_options(given | changes, environ)
                for name, changes in map(read_case, given["case"])
            }
    except SettingError as error:
        made.error(str(error))
    if len(cases) < len(given["case"]):
        made.error("--case: two have the same name")
    return Command(
        cases,
        as_json=given["json"],
        by_request=given["by_request"],
        by_tenant=given["by_tenant"],
        draws=given["timeline"],
        checks=given["check"],
        calibrate=given["calibrate"],
    )


def read_case(text: str) -> tuple[str, dict[str, str]]:
    """`NAME:key=value,…`. A comma within a value needs no care: only a known key ends a value."""
    known = {spec.name for specs in groups().values() for spec in specs}
    name, _, rest = text.partition(":")
    if not name.strip() or "=" in name:
        raise SettingError(f"--case: {text!r} is not NAME:key=value,…")
    changes: dict[str, str] = {}
    key = ""
    for part in filter(None, rest.split(",")):
        left, equals, value = part.partition("=")
        found = left.strip().replace("-", "_")
        if equals and found in known:
            key = found
            changes[key] = value
        elif key:
            changes[key] += f",{part}"
        else:
            raise SettingError(f"--case {name}: {left!r} is no setting")
    return name, changes
