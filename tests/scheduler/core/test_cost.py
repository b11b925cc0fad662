"""The cost model against machines whose speed is known."""

from random import Random

import pytest

from scheduler.core.cost import CostModel
from scheduler.core.decision import Decision


def step(num_decoding: int, context: int = 0, prompt: int = 0, start: int = 0) -> Decision:
    """Some rows decode, with so much context together; one prompt has a chunk."""
    made = Decision(1, 0, num_decoding + prompt)
    made.num_decoding, made.decode_context = num_decoding, context
    made.prefill_attention = prompt * (start + prompt / 2)
    return made


def seconds(made: Decision, slow: float = 1.0) -> float:
    rows = 1e-4 * made.num_decoding + 1e-7 * made.decode_context
    return slow * (0.02 + 5e-4 * made.num_tokens + rows + 2e-8 * made.prefill_attention)


def any_step(random: Random) -> Decision:
    prompt = random.choice([0, 100, 500])
    rows, start = random.randint(1, 32), random.randint(0, 2_000)
    return step(rows, random.randint(10, 30_000), prompt, start if prompt else 0)


def taught(num_steps: int, slow: float = 1.0, noise: float = 0.03) -> CostModel:
    random, model = Random(1), CostModel()
    for _ in range(num_steps):
        made = any_step(random)
        model.learn(made, seconds(made, slow) * (1 + random.gauss(0, noise)))
    return model


STEPS = [step(8, 8_000), step(1, 100), step(8, 8_000, 500, 1_000), step(0, 0, 300)]


@pytest.mark.parametrize("slow", [1.0, 20.0, 0.05])
@pytest.mark.parametrize("made", STEPS, ids=str)
def test_steps_are_foreseen_after_some_hundred(made: Decision, slow: float) -> None:
    model = taught(400, slow)
    assert model.seconds(made) == pytest.approx(seconds(made, slow), rel=0.15)
    assert model.error < 0.1


def test_a_machine_that_becomes_slower_is_followed() -> None:
    model, random = taught(400), Random(2)
    for _ in range(800):
        made = any_step(random)
        model.learn(made, seconds(made, 3.0))
    assert model.seconds(STEPS[0]) == pytest.approx(seconds(STEPS[0], 3.0), rel=0.15)


def test_steps_that_took_no_time_teach_nothing() -> None:
    model = CostModel()
    before = model.seconds(STEPS[0])
    model.learn(STEPS[0], 0.0)
    assert (model.num_steps, model.error, model.seconds(STEPS[0])) == (0, 0.0, before)


@pytest.mark.parametrize("start", [0, 1_000, 3_000])
def test_the_room_for_a_prompt_is_what_takes_the_time_left(start: int) -> None:
    model = taught(400)
    target = 0.2
    count = model.room(step(8, 8_000), start, target)
    took = seconds(step(8, 8_000, count, start))
    assert 0.8 * target <= took * model.margin <= 1.1 * target


def test_there_is_no_room_where_decoding_alone_takes_too_long() -> None:
    assert taught(400).room(step(8, 8_000), 0, 0.01) == 0


def test_the_margin_is_that_of_all_but_the_slowest_steps() -> None:
    model = CostModel()
    assert model.margin == 1.5, "nothing is known"
    model = taught(400)
    assert 1.0 <= model.margin < 1.2
    random = Random(3)
    for turn in range(200):
        made = any_step(random)
        model.learn(made, seconds(made) * (1.6 if turn % 20 == 0 else 1.0))
    assert 1.4 < model.margin < 1.8


def test_a_new_model_takes_the_machine_for_slow() -> None:
    model = CostModel()
    assert model.seconds(step(0, 0, 1_000)) > 0.4
    assert 0 < model.room(step(1, 10), 0, 0.1) < 200


def test_a_load_that_never_changes_is_foreseen_for_ever() -> None:
    """Tokens and rows that are always the same tell nothing apart: that must not undo anything."""
    random, model = Random(4), CostModel()
    for turn in range(3_000):
        made = step(2, 100 + 2 * turn % 800)
        model.learn(made, 0.02 * (1 + random.gauss(0, 0.01)))
        assert turn < 100 or model.error < 0.05
    assert model.seconds(made) == pytest.approx(0.02, rel=0.05)
    for _ in range(1_500):
        model.learn(made, 0.06)
    assert model.seconds(made) == pytest.approx(0.06, rel=0.05), "the machine became slower"


@pytest.mark.parametrize("slow", [1.0, 20.0, 0.05])
def test_the_model_is_as_good_after_twenty_thousand_steps(slow: float) -> None:
    model = taught(20_000, slow)
    for made in STEPS:
        assert model.seconds(made) == pytest.approx(seconds(made, slow), rel=0.15)
    assert model.error < 0.1


@pytest.mark.parametrize("slow", [1.0, 0.05])
def test_steps_that_are_all_alike_do_not_spoil_it(slow: float) -> None:
    """Eight rows decode, and nothing else happens for long."""
    model, random = CostModel(), Random(1)
    for turn in range(5_000):
        made = step(8, 8_000 + turn % 50)
        model.learn(made, seconds(made, slow) * (1 + random.gauss(0, 0.05)))
        if turn > 50:
            assert model.seconds(made) == pytest.approx(seconds(made, slow), rel=0.2)
    assert model.error < 0.1
    for _ in range(100):
        made = any_step(random)
        model.learn(made, seconds(made, slow))
    assert model.seconds(STEPS[2]) == pytest.approx(seconds(STEPS[2], slow), rel=0.2)


def test_a_fast_machine_is_known_after_a_few_steps() -> None:
    """A step takes a millisecond and a tenth of one for each token."""
    model, random = CostModel(), Random(1)
    for _ in range(30):
        made = step(1, 100, random.choice([0, 20, 50]))
        model.learn(made, 0.001 + made.num_tokens * 1e-4)
    assert model.margin < 10
    assert 20 <= model.room(step(1, 100), 0, 0.005 * model.margin) <= 45


def test_one_slow_step_does_not_upset_it() -> None:
    model = taught(400)
    model.learn(STEPS[0], 50 * seconds(STEPS[0]))
    assert model.seconds(STEPS[0]) == pytest.approx(seconds(STEPS[0]), rel=0.2)
