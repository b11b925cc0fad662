"""An ITL target bounds what a step gives to prompts, once it is known what steps cost."""

from tests.scheduler.core.driving import Drive, chunks


def taught(target: float, num_steps: int = 260) -> Drive:
    """`a` decodes. Steps take 10 ms, and half a millisecond more for each token."""
    drive = Drive(
        itl_target_seconds=target,
        max_step_tokens=64,
        num_blocks=230,
        max_request_tokens=1000,
        depth=0,
    )
    drive.add("a", 4, 500)
    for i in range(num_steps):
        if i % 3 == 0:
            drive.add(f"t{i}", 10 + i % 40, 1, arrival=i + 1)
        step(drive)
    while drive.line or drive.running != ["a"]:
        step(drive)
    return drive


def step(drive: Drive) -> list[tuple[str, int, int]]:
    plan = drive.plan()
    drive.answer(seconds=0.01 + plan.num_tokens * 5e-4)
    drive.scheduler.take_ended()
    return chunks(plan)


def prompt_chunks(drive: Drive) -> list[int]:
    """Of one of 300 tokens; `a` decodes beside it all the time."""
    drive.add("long", 300, 1, arrival=1e6)
    counts = []
    while len(drive.scheduler.requests) > 1:
        decoding, *prefilling = step(drive)
        assert (decoding[0], decoding[2]) == ("a", 1)
        counts += [count for name, _, count in prefilling]
    assert sum(counts) == 300
    return counts


def test_without_a_target_a_prompt_takes_what_the_step_has_room_for() -> None:
    assert prompt_chunks(taught(0.0))[:4] == [63] * 4


def test_chunks_of_a_prompt_shrink_until_steps_meet_the_target() -> None:
    """25 ms are worth 29 tokens beside the one that decodes."""
    counts = prompt_chunks(taught(0.025))
    assert all(24 <= count <= 29 for count in counts[:-1]), counts


def test_a_target_that_cannot_be_met_lets_prompts_go_on_a_block_a_step() -> None:
    assert set(prompt_chunks(taught(0.001, num_steps=12))) == {4}


def test_a_prompt_with_nobody_beside_it_is_not_bounded() -> None:
    drive = Drive(itl_target_seconds=1e-4, max_step_tokens=64, max_request_tokens=200)
    drive.add("a", 100, 1)
    assert chunks(drive.step()) == [("a", 0, 64)]


def test_one_in_line_is_bounded_as_those_that_run() -> None:
    drive = taught(0.001, num_steps=12)
    drive.add("b", 40, 1, arrival=1e6)
    assert step(drive)[1:] == [("b", 0, 4)]
