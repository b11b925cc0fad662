"""What the simulation would not notice, it would not test: it notices every safeguard's absence."""

import re
from pathlib import Path
from unittest import mock

import pytest

from common.bus import Outcome
from common.redis_bus import RedisBus, server
from tests import simulate_faults
from tests.common.conftest import lead
from tests.common.test_bus_fencing import EVERY_WRITE
from tests.system.safeguards import SAFEGUARDS
from tests.valkey import ValkeyServer

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
MAX_SEEDS = 400
UNFIT = ("AttributeError", "NameError", "TypeError")  # of a patch that the code has outgrown
LEADERS = re.compile(r"register_function\('(\w+)', of_leader\((\w+)\)\)")
FUNCTIONS = [function for function, _ in LEADERS.findall(server.library_code())]


@pytest.mark.slow
@pytest.mark.timeout(540)
@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_some_schedule_misses_it(safeguard: str) -> None:
    simulate_faults.be_quiet()
    with SAFEGUARDS[safeguard]():
        verdicts = map(simulate_faults.simulate, range(1, MAX_SEEDS + 1))
        missed = next((verdict for verdict in verdicts if verdict.wrong), None)
    assert missed
    print(missed)  # with -s, for the page
    assert not missed.reason.startswith(UNFIT), missed.wrong


def test_the_page_lists_them() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [row for row in rows if row in SAFEGUARDS] == list(SAFEGUARDS)


async def test_every_function_of_the_leader_compares_the_epoch_itself() -> None:
    """Without its comparison each lets a leader write that was replaced, and the test sees it."""
    assert len(FUNCTIONS) == 8
    own_server = ValkeyServer()
    try:
        own_server.start()
        assert await not_fenced(own_server, server.library_code()) == set()
        for function in FUNCTIONS:
            assert await not_fenced(own_server, without_comparison(function)), function
    finally:
        own_server.close()


def without_comparison(function: str) -> str:
    code = server.library_code()
    return code.replace(f"of_leader({function})", function)


async def not_fenced(own_server: ValkeyServer, code: str) -> set[type]:
    """The kinds of writes that an old leader still makes where the library says `code`."""
    with mock.patch.object(server, "library_code", return_value=code):
        bus = RedisBus(own_server.url, "own")
        try:
            old = await lead(bus, "old")
            await lead(bus, "new")
            writes = [(type(write), await bus.write(old, [write])) for write in EVERY_WRITE]
        finally:
            await bus.aclose()
    return {kind for kind, outcomes in writes if outcomes != [Outcome.FENCED]}
