"""What the settings of a scheduler become."""

from dataclasses import fields, replace

import pytest

from common.bus import Lease
from common.config import SchedulerSettings
from common.memory_bus import MemoryBus
from common.memory_server import MemoryServer
from common.messages import WorkerHello, WorkerId
from scheduler.core.strategies import BATCHING, KV, POLICY, PREFILL
from scheduler.service import Reign

HELLO = WorkerHello(WorkerId("w"), "m", "cpu", 64, 16, 512, 128, 8)
CHOICES = {"batching": BATCHING, "prefill": PREFILL, "kv": KV, "policy": POLICY}
ROLES = {"batching": "may_join", "prefill": "chunk", "kv": "reserve", "policy": "place"}


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_of_a_setting_is_a_strategy(name: str) -> None:
    [spec] = [spec for spec in fields(SchedulerSettings) if spec.name == name]
    assert set(spec.metadata["choices"]) == set(CHOICES[name])


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_reaches_the_core(name: str) -> None:
    def other(*_: object) -> None: ...

    settings = replace(SchedulerSettings(), **{name: "other"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHOICES[name], "other", other)
        reign = Reign(MemoryBus(MemoryServer()), settings, Lease("s", 1))
        core = reign.leader.fleet.build_core(HELLO)
    assert getattr(core.strategies, ROLES[name]) is other
