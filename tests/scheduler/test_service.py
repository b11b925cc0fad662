"""What the settings of a scheduler become."""

import subprocess
import sys
from dataclasses import fields, replace

import pytest

from common.bus import Lease
from common.config import SchedulerSettings, read
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import WorkerHello, WorkerId
from scheduler.core.scheduler import Limits, Memory
from scheduler.core.strategies import TABLES, Choices
from scheduler.service import Reign
from scheduler.setup import choices_of, weights_of

HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, 8, num_host_blocks=32)
KEY = bytes(range(32))


def reign(**changes: object) -> Reign:
    settings = replace(SchedulerSettings(), **changes)  # type: ignore[arg-type]
    return Reign(MemoryBus(MemoryServer()), settings, Lease("s", 1), KEY)


@pytest.mark.parametrize("name", TABLES)
def test_each_choice_of_a_setting_is_a_strategy(name: str) -> None:
    [spec] = [spec for spec in fields(SchedulerSettings) if spec.name == name]
    assert set(spec.metadata["choices"]) == set(TABLES[name])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("setting", "value", "choice", "chosen"),
    [
        ("batching", "static", "batching", "static"),
        ("prefill", "whole", "prefill", "whole"),
        ("kv", "reserved", "kv", "reserved"),
        ("reservation", "maximum", "reservation", "maximum"),
        ("preemption", "swap", "preemption", "swap"),
        ("policy", "fair", "policy", "fair"),
        ("aging_seconds", 7.0, "aging_seconds", 7.0),
        ("ttft_target_ms", 500.0, "ttft_target_seconds", 0.5),
        ("prefix_cache", "off", "prefix_cache", False),
        ("itl_target_ms", 40.0, "itl_target_seconds", 0.04),
    ],
)
def test_each_setting_reaches_the_core(
    setting: str, value: object, choice: str, chosen: object
) -> None:
    of_default, of_other = (
        it.leader.fleet.build_core(HELLO) for it in (reign(), reign(**{setting: value}))
    )
    assert of_default.choices == Choices()
    assert getattr(of_other.choices, choice) == chosen != getattr(Choices(), choice)


def test_what_the_worker_can_do_bounds_the_core() -> None:
    core = reign(max_step_tokens=64, max_running=4, depth=2).leader.fleet.build_core(HELLO)
    assert core.limits == Limits(64, 4, 2, 512, max_rows=8)
    assert reign().leader.fleet.build_core(HELLO).limits == Limits(128, 8, 1, 512, max_rows=8)
    assert (core.pool.num_blocks, core.pool.block_size, core.host.num_blocks) == (64, 16, 32)
    assert Memory(64, 16, 32).num_host_blocks == 32


def test_all_cores_share_the_counters_and_the_key() -> None:
    it = reign(policy="fair", tenant_weights="alice=2")
    cores = [it.leader.fleet.build_core(HELLO) for _ in range(2)]
    assert all(core.shares is it.shares for core in cores)
    assert it.shares.weights == {"alice": 2.0}
    assert [core.cache.key for core in cores if core.cache] == [KEY, KEY]


def test_the_prefix_cache_goes_where_it_can_go() -> None:
    settings = SchedulerSettings()
    assert choices_of(settings).prefix_cache
    assert not choices_of(replace(settings, kv="reserved")).prefix_cache
    assert not choices_of(replace(settings, prefix_cache="off")).prefix_cache
    with pytest.raises(ValueError, match="prefix_cache"):
        choices_of(replace(settings, kv="reserved", prefix_cache="on"))


@pytest.mark.parametrize(
    ("text", "weights"),
    [("", {}), ("alice=2,bob=0.5", {"alice": 2.0, "bob": 0.5}), (" a=b=1 ,", {"a=b": 1.0})],
)
def test_weights_are_tenants_with_numbers(text: str, weights: dict[str, float]) -> None:
    assert weights_of(replace(SchedulerSettings(), tenant_weights=text)) == weights


@pytest.mark.parametrize("text", ["alice", "=2", "a=0", "a=-1", "a=nan", "a=inf", "a=x", "a=1,a=2"])
def test_other_weights_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--tenant-weights: "):
        weights_of(replace(SchedulerSettings(), tenant_weights=text))


@pytest.mark.parametrize(
    "flags",
    [
        ["--kv", "reserved", "--prefix-cache", "on"],
        ["--kv", "reserved", "--preemption", "swap"],
        ["--prefill", "whole", "--itl-target-ms", "50"],
        ["--tenant-weights", "alice=much"],
        ["--policy", "chaos"],
    ],
)
def test_settings_that_contradict_each_other_are_one_line(flags: list[str]) -> None:
    """Before anything starts: no server is needed to say so."""
    command = [sys.executable, "-m", "scheduler", "--redis-url", "redis://127.0.0.1:1/0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("chairlift scheduler: ")
    assert done.stderr.count("\n") == 1, done.stderr


def test_reserved_memory_needs_no_other_flag() -> None:
    settings = read(SchedulerSettings, "test", ["--kv", "reserved"], {})
    assert choices_of(settings).kv == "reserved"
