"""preemption=swap: blocks go to host memory and come back."""

from typing import Any

import pytest

from common.messages import FinishReason, StepPlan
from scheduler.core.request import Request, Status
from tests.scheduler.core.driving import END_TOKEN, TOKEN, Drive, chunks, names, request, started


def swapping(num_host_blocks: int = 4, **fields: Any) -> tuple[Drive, Request, StepPlan]:
    """`young` has computed 3 of its tokens, and lost its two blocks to `old`."""
    drive = Drive(
        num_blocks=4,
        block_size=2,
        depth=1,
        preemption="swap",
        num_host_blocks=num_host_blocks,
        **fields,
    )
    drive.add("old", 2, max_tokens=6)
    young = drive.add("young", 1, max_tokens=6)
    drive.step()
    drive.step()
    drive.plan()
    return drive, young, drive.plan()


def test_blocks_go_out_with_the_plan_that_takes_the_row() -> None:
    drive, young, plan = swapping()
    before = [chunk for chunk in drive.chunks if chunk.request_id == young.id]
    assert names(plan.released) == ["young"]
    table = [block for chunk in before for block in chunk.new_blocks]
    assert [block for block, _ in plan.swap_out] == table
    assert len({host for _, host in plan.swap_out}) == 2
    assert drive.scheduler.last.preempted == [(young.id, "swap")]
    assert (young.status, young.num_saved, young.block_table) == (Status.SWAPPED, 3, [])
    assert drive.scheduler.host.num_free == 2
    (seen,) = drive.scheduler.line(9)
    assert (seen.num_host_blocks, seen.num_computed, seen.status) == (2, 3, Status.SWAPPED)


def test_they_come_back_in_front_and_nothing_is_computed_twice() -> None:
    drive, young, out = swapping()
    drive.add("c", 1, max_tokens=2)
    plan = drive.next_start()
    assert started(plan)[0] == "young"
    assert plan.admitted[0].num_computed == 3
    assert plan.admitted[0].tokens == (1, TOKEN, TOKEN, TOKEN)
    assert ("young", 3, 1) in chunks(plan)
    back = [host for _, host in plan.swap_in]
    assert back == [host for _, host in out.swap_out]
    assert [block for block, _ in plan.swap_in] == young.block_table[:2]
    assert (young.status, young.host_blocks, young.num_saved) == (Status.RUNNING, [], 0)
    assert drive.scheduler.host.num_free == 4
    assert sorted(drive.finish()[-2:]) == ["c", "young"]


def test_a_token_promised_meanwhile_arrives_and_it_does_not_come_back_before() -> None:
    drive, young, _ = swapping()
    assert young.num_promised == 1
    drive.scheduler.end(drive.scheduler.running.rows[0].id, FinishReason.CANCELLED)
    drive.answer()
    assert (young.num_promised, young.num_output) == (0, 3)
    assert drive.finish()[-1] == "young"
    assert young.tokens == [1, *[TOKEN] * 6]


def test_one_that_still_has_tokens_promised_waits() -> None:
    drive = Drive(num_blocks=4, block_size=2, depth=3, preemption="swap", num_host_blocks=4)
    drive.add("old", 2, max_tokens=6)
    young = drive.add("young", 1, max_tokens=6)
    while "young" not in drive.preempted:
        drive.plan()
    drive.scheduler.end(drive.scheduler.running.rows[0].id, FinishReason.CANCELLED)
    drive.answer()
    assert young.num_promised > 0
    drive.plan()
    assert drive.passed == [("young", "promised")]
    assert drive.finish()[-1] == "young"
    assert young.num_output == 6


def test_too_little_host_memory_means_computing_again() -> None:
    drive, young, plan = swapping(num_host_blocks=1)
    assert plan.swap_out == ()
    assert drive.scheduler.last.preempted == [(young.id, "recompute")]
    assert (young.status, young.num_saved) == (Status.WAITING, 0)
    plan = drive.next_start()
    assert (plan.swap_in, plan.admitted[0].num_computed) == ((), 0)
    assert ("young", 0, 4) in chunks(plan)


@pytest.mark.parametrize("how", ["cancel", "hold", "strand", "end token"])
def test_whoever_leaves_while_swapped_gives_its_host_blocks_back(how: str) -> None:
    drive, young, _ = swapping()
    match how:
        case "cancel":
            drive.scheduler.end(young.id, FinishReason.CANCELLED)
        case "hold":
            drive.scheduler.hold(young.id)
            assert (young.status, young.held) == (Status.WAITING, True)
        case "strand":
            drive.scheduler.strand()
        case "end token":
            drive.answer(END_TOKEN)
            assert young.finish_reason is FinishReason.STOP
    assert drive.scheduler.host.num_free == 4
    assert (young.num_saved, young.host_blocks) == (0, [])


def test_one_held_while_swapped_computes_all_again_when_released() -> None:
    drive, young, _ = swapping()
    drive.scheduler.hold(young.id)
    drive.answer()
    drive.answer()
    drive.scheduler.release(young.id)
    plan = drive.next_start()
    assert (plan.swap_in, plan.admitted[0].num_computed) == ((), 0)
    assert drive.finish()[-1] == "young"


def test_a_prompt_that_is_half_computed_goes_on_where_it_was() -> None:
    drive = Drive(
        num_blocks=9,
        block_size=2,
        depth=0,
        max_step_tokens=4,
        preemption="swap",
        num_host_blocks=9,
    )
    drive.add("old", 1, max_tokens=17)
    drive.step()
    young = drive.add("young", 13, max_tokens=2, arrival=1)
    while "young" not in drive.preempted:
        plan = drive.step()
    assert 0 < young.num_saved < 13
    assert len(plan.swap_out) == -(-young.num_saved // 2), "blocks that hold something"
    saved = young.num_saved
    plan = drive.next_start()
    assert chunks(plan)[-1][:2] == ("young", saved)


def test_blocks_come_back_into_blocks_of_nobody_else() -> None:
    """Although the device has the beginning still, shared by another row."""
    drive = Drive(prefix_cache=True, preemption="swap", num_host_blocks=9, max_running=2, depth=0)
    back = drive.add("back", 9, max_tokens=20)
    drive.step()
    other = drive.add("other", 10, max_tokens=20, arrival=1)
    drive.step()
    assert set(other.block_table) & set(back.block_table)
    drive.scheduler.set_priority(back.id, 9)
    back.rank = (1e9, 0)  # as if it had been admitted so
    drive.scheduler.running.rows.reverse()
    drive.add("urgent", 3, max_tokens=2, arrival=2)
    drive.step()
    assert (back.status, drive.preempted) == (Status.SWAPPED, ["back"])
    while back.status is not Status.RUNNING:
        plan = drive.step()
    assert plan.swap_in
    assert not set(other.block_table) & set(back.block_table)


def test_one_that_is_swapped_is_not_for_other_workers() -> None:
    drive, young, _ = swapping()
    drive.answer()
    drive.answer()
    assert young.status is Status.SWAPPED
    assert drive.scheduler.stealable(9) == []
    assert drive.scheduler.take_back(young.id) is None


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_answers_are_those_of_an_undisturbed_run(prefix_cache: bool) -> None:
    """The worker checks each read; here also that swapping happened, both ways."""
    drive = Drive(
        num_blocks=9,
        block_size=2,
        max_running=6,
        preemption="swap",
        num_host_blocks=2,
        prefix_cache=prefix_cache,
    )
    for i in range(12):
        made = request(f"r{i}", 0, 6, arrival=i, tokens=(i % 3, 5, 6, 7)[: 1 + i % 4])
        drive.scheduler.add(made)
    hows = set()
    while drive.scheduler.requests:
        drive.step()
        hows |= {how.value for _, how in drive.scheduler.last.preempted}
        drive.take_ended()
    assert hows == {"swap", "recompute"}
    assert all(made.num_output == 6 for made in drive.ended)
