"""The prefix cache, asserted on the plan: who shares whose blocks, and who waits for them."""

from typing import Any

import pytest

from common.messages import (
    FinishReason,
    RequestId,
)
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.request import Request
from tests.scheduler.core.driving import Drive, chunks, request


def sharing(**fields: Any) -> Drive:
    return Drive(**{"prefix_cache": True, "max_step_tokens": 32, **fields})


def add(drive: Drive, name: str, *tokens: int, max_tokens: int = 20, **fields: Any) -> Request:
    made = request(name, 0, max_tokens, tokens=tokens, arrival=len(drive.scheduler.requests))
    for field, value in fields.items():
        setattr(made, field, value)
    drive.scheduler.add(made)
    return made


FIRST = (1, 2, 3, 4, 5, 6, 7, 8, 9)  # two full blocks, and one token


def computed() -> Drive:
    """`a` has computed FIRST, and decodes."""
    drive = sharing()
    add(drive, "a", *FIRST)
    drive.step()
    return drive


# --- Hits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "num_cached"),
    [
        (FIRST, 8),
        (FIRST[:8], 4),  # the last token is computed in any case
        (FIRST[:5], 4),
        (FIRST[:4], 0),
        ((*FIRST[:8], 50, 51, 52, 53, 54), 8),
        ((*FIRST[:7], 50, 51), 4),
        ((50, *FIRST[1:]), 0),
        (FIRST[4:], 0),  # the same tokens at other positions
    ],
)
def test_full_blocks_of_equal_beginnings_are_found(
    tokens: tuple[int, ...], num_cached: int
) -> None:
    drive = computed()
    made = add(drive, "b", *tokens)
    assert drive.scheduler.cached_tokens(made) == num_cached
    plan = drive.step()
    assert ("b", num_cached, len(tokens) - num_cached) in chunks(plan)
    assert plan.admitted[0].num_computed == made.num_cached == num_cached
    first = drive.scheduler.requests[RequestId("a.0")].block_table
    assert made.block_table[: num_cached // 4] == first[: num_cached // 4]
    assert not set(made.block_table[num_cached // 4 :]) & set(first)


def test_answers_are_found_too() -> None:
    """A conversation goes on: its next prompt begins with the last answer."""
    drive = sharing()
    ended = add(drive, "a", 1, 2, 3, max_tokens=6)
    drive.finish()
    assert drive.scheduler.cached_tokens(request("b", 0, tokens=(*ended.tokens, 8))) == 8


def test_what_is_in_flight_is_not_found() -> None:
    drive = sharing()
    add(drive, "a", *FIRST)
    drive.plan()
    assert drive.scheduler.cached_tokens(request("b", 0, tokens=FIRST)) == 0
    drive.answer()
    assert drive.scheduler.cached_tokens(request("b", 0, tokens=FIRST)) == 8


def test_blocks_of_one_that_ended_are_found_until_they_are_taken() -> None:
    drive = sharing(num_blocks=4)
    add(drive, "a", *FIRST, max_tokens=1)
    drive.finish()
    assert drive.scheduler.pool.num_idle_cached == 2
    later = request("later", 0, tokens=FIRST)
    assert drive.scheduler.cached_tokens(later) == 8
    add(drive, "b", *range(100, 112), max_tokens=1)
    drive.finish()
    assert drive.scheduler.cached_tokens(later) == 4, "the end of the chain went first"


def test_the_least_recently_used_chain_goes_first() -> None:
    drive = sharing(num_blocks=6)
    chains = {name: tuple(range(start, start + 9)) for name, start in (("a", 100), ("b", 200))}
    for name, tokens in chains.items():
        add(drive, name, *tokens, max_tokens=1)
        drive.finish()
    add(drive, "c", *chains["a"], max_tokens=1)
    drive.finish()
    add(drive, "d", *range(300, 313), max_tokens=1)
    drive.finish()
    found = [drive.scheduler.cached_tokens(request(name, 0, tokens=chains[name])) for name in "ab"]
    assert found == [8, 0]


def test_idle_blocks_that_are_shared_are_not_free_for_the_rest_as_well() -> None:
    """Of four blocks two are idle hits, one is of another row, and two more are wanted."""
    drive = sharing(num_blocks=4)
    add(drive, "a", *FIRST, max_tokens=1)
    drive.finish()
    add(drive, "b", 50, 51, max_tokens=2)
    made = add(drive, "c", *FIRST[:8], *range(60, 68), max_tokens=1)
    drive.plan()
    assert drive.running == ["b"]
    assert drive.passed == [("c", "no_blocks")]
    assert drive.finish() == ["b", "c"]
    assert made.num_cached == 8


def test_shared_blocks_belong_to_all_until_the_last_has_left() -> None:
    drive = computed()
    shared = add(drive, "b", *FIRST)
    drive.step()
    pool, block = drive.scheduler.pool, shared.block_table[0]
    assert pool.owners(block) == 2
    for name, num_owners in (("a.0", 1), ("b.0", 0)):
        drive.scheduler.end(RequestId(name), FinishReason.CANCELLED)
        assert pool.owners(block) == num_owners
        assert (pool.num_free == pool.num_blocks) == (not num_owners)


# --- Whoever may not share --------------------------------------------------------------------


def test_tenants_do_not_share() -> None:
    drive = computed()
    made = add(drive, "b", *FIRST, tenant="other")
    assert drive.scheduler.cached_tokens(made) == 0
    assert ("b", 0, 9) in chunks(drive.step())


def test_nothing_is_shared_where_the_cache_is_off() -> None:
    drive = Drive(max_step_tokens=32)
    add(drive, "a", *FIRST)
    drive.step()
    made = add(drive, "b", *FIRST)
    assert drive.scheduler.cached_tokens(made) == 0
    assert ("b", 0, 9) in chunks(drive.step())


def test_keys_make_other_hashes() -> None:
    one, other = computed(), computed()
    assert other.scheduler.cache
    index = other.scheduler.cache.index
    other.scheduler.cache = PrefixCache(index, other.scheduler.pool.block_size, b"other")
    made = request("b", 0, tokens=FIRST)
    assert one.scheduler.cached_tokens(made) == 8
    assert other.scheduler.cached_tokens(made) == 0
    assert one.scheduler.cached_tokens(made) == 8, "hashes are not taken from the other one"


def test_blocks_of_a_row_that_failed_are_shared_with_nobody_any_more() -> None:
    drive = computed()
    made = add(drive, "b", *FIRST, *range(20, 24))
    drive.step()
    assert drive.scheduler.cached_tokens(request("c", 0, tokens=tuple(made.tokens))) == 12
    drive.plan()
    drive.answer(failing=("b",))
    assert drive.scheduler.cached_tokens(request("c", 0, tokens=tuple(made.tokens))) == 0
    assert drive.scheduler.pool.num_idle_cached == 0


def test_a_row_that_lost_a_token_is_not_trusted_either() -> None:
    drive = sharing()
    add(drive, "a", *FIRST)
    plan = drive.plan()
    result = drive.worker.execute(lambda *_: 7)
    drive.apply(type(result)(plan.step, (), 0.0))
    assert drive.scheduler.cached_tokens(request("b", 0, tokens=FIRST)) == 0


# --- Coming back ------------------------------------------------------------------------------


def test_a_preempted_one_finds_its_own_blocks() -> None:
    drive = sharing(num_blocks=5, block_size=2, depth=0)
    add(drive, "old", 1, 2, 3, max_tokens=6)
    young = add(drive, "young", 4, 5, 6, max_tokens=4)
    while "young" not in drive.preempted:
        drive.step()
    assert young.num_computed == 0
    drive.scheduler.end(RequestId("old.0"), FinishReason.CANCELLED)
    plan = drive.next_start()
    assert plan.admitted[0].num_computed >= 2
    assert young.num_cached == 0, "at its first admission"


def test_one_that_was_held_finds_its_own_blocks() -> None:
    drive = computed()
    made = drive.scheduler.requests[RequestId("a.0")]
    drive.scheduler.hold(made.id)
    drive.scheduler.release(made.id)
    assert drive.next_start().admitted[0].num_computed == 8


def test_a_swapped_one_comes_back_from_host_memory_and_shares_again() -> None:
    drive = sharing(num_blocks=5, block_size=2, depth=0, preemption="swap", num_host_blocks=5)
    add(drive, "old", 1, 2, 3, max_tokens=6)
    young = add(drive, "young", 4, 5, 6, max_tokens=4)
    while "young" not in drive.preempted:
        drive.step()
    saved = young.num_saved
    plan = drive.next_start()
    assert plan.admitted[0].num_computed == saved
    assert [host for _, host in plan.swap_in]
    drive.answer()
    assert drive.scheduler.cached_tokens(request("c", 0, tokens=tuple(young.tokens))) >= 2


def test_a_stranded_one_is_hashed_again_for_another_worker() -> None:
    drive = computed()
    (made,) = drive.scheduler.strand()
    other = computed()
    assert other.scheduler.cache
    assert other.scheduler.cached_tokens(made) == 8


def test_blocks_of_an_answer_are_shared_once_it_has_ended() -> None:
    drive = sharing()
    made = add(drive, "a", *FIRST, max_tokens=9)
    for _ in range(8):
        drive.step()
    later = add(drive, "b", *made.tokens, 50, max_tokens=2)
    assert len(made.tokens) == 17
    assert drive.scheduler.cached_tokens(later) == 8
    drive.step()
    assert made.finish_reason is FinishReason.LENGTH
    another = add(drive, "c", *made.tokens, 51, max_tokens=2)
    assert drive.scheduler.cached_tokens(another) == 16


def test_nothing_of_a_request_that_fails_is_shared() -> None:
    drive = sharing()
    made = add(drive, "a", *FIRST, max_tokens=9)
    for _ in range(8):
        drive.step()
    drive.scheduler.end(made.id, FinishReason.ERROR, error="it spoils what it touches")
    later = add(drive, "b", *made.tokens, 50)
    assert drive.scheduler.cached_tokens(later) == 0


def test_tokens_of_no_vocabulary_are_told_apart() -> None:
    """Whatever a client sends as a token: equal ones share, others do not."""
    drive = sharing()
    large = (1 << 40, 7, 8, 9)
    add(drive, "a", *large, 1)
    drive.step()
    same, other = add(drive, "b", *large, 2), add(drive, "c", (1 << 40) + 1, 7, 8, 9, 2)
    assert drive.scheduler.cached_tokens(same) == 4
    assert drive.scheduler.cached_tokens(other) == 0
