"""A timeline made of a known model gives that model back."""

import json
from pathlib import Path
from random import Random

import pytest

from common.messages import Chunk, RequestId
from scheduler.simulation.calibration import fit, mean_error, read_steps
from scheduler.simulation.cost import Linear, load_of
from scheduler.simulation.errors import InputError

TRUTH = Linear(step=0.004, token=0.0005, decode_context=2e-7, row=0.0002, prefill_context=1e-7)


def steps(model: Linear, noise: float = 0.0) -> list[tuple]:  # type: ignore[type-arg]
    random = Random(3)
    found = []
    for _ in range(300):
        chunks = [
            Chunk(RequestId("r"), random.randrange(2000), 1, (), True)
            for _ in range(random.randrange(32))
        ]
        if random.random() < 0.5 or not chunks:
            chunks.append(
                Chunk(RequestId("p"), random.randrange(500), random.randrange(2, 192), (), True)
            )
        load = load_of(chunks)
        found.append((load, model.seconds(load) * (1 + noise * random.uniform(-1, 1))))
    return found


def test_a_known_model_is_found_again() -> None:
    found = fit(steps(TRUTH))
    for name in ("step", "token", "decode_context", "row", "prefill_context"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=1e-4)
    assert mean_error(found, steps(TRUTH)) < 1e-6


def test_noise_is_averaged() -> None:
    noisy = steps(TRUTH, noise=0.2)
    assert mean_error(fit(noisy), steps(TRUTH)) < 0.03
    assert mean_error(fit(noisy), noisy) == pytest.approx(0.1, abs=0.01)


def test_no_coefficient_is_below_zero() -> None:
    """Here the best without that rule would take time off for each row."""
    odd = Linear(step=0.05, token=0.0005, row=-0.0003)
    found = fit(steps(odd))
    assert found.row == 0.0
    assert min(found.step, found.token, found.decode_context, found.prefill_context) >= 0


def entry(**changes: object) -> str:
    empty = {"worker": "w", "step": 0, "chunks": [], "admitted": [], "seconds": []}
    return json.dumps(empty | changes)


def test_starts_follow_from_admissions_and_seconds_come_later(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    lines = [
        entry(step=1, admitted=[["a", 0]], chunks=[["a", 8]]),
        entry(step=2, admitted=[["b", 16]], chunks=[["a", 1], ["b", 4]], seconds=[[1, 0.5]]),
        entry(step=3, chunks=[["a", 1]]),
        entry(seconds=[[2, 0.25], [3, 0.125]]),
    ]
    file.write_text("\n".join(lines))

    def load(*chunks: tuple[int, int]) -> object:
        return load_of([Chunk(RequestId("r"), *chunk, (), True) for chunk in chunks])

    assert read_steps(str(file)) == [
        (load((0, 8)), 0.5),
        (load((8, 1), (16, 4)), 0.25),
        (load((9, 1)), 0.125),
    ]


def test_steps_of_requests_that_began_before_the_recording_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    first = entry(step=7, admitted=[["b", 0]], chunks=[["a", 1], ["b", 4]], seconds=[])
    second = entry(step=8, chunks=[["b", 1]], seconds=[[7, 0.5]])
    file.write_text("\n".join([first, second, entry(seconds=[[8, 0.25]])]))
    [(load, seconds)] = read_steps(str(file))
    assert (load.decode_context, seconds) == (5, 0.25)


@pytest.mark.parametrize("text", ["{}", "x", '{"worker": 1, "seconds": 3}', "[]"])
def test_a_file_that_is_no_timeline(tmp_path: Path, text: str) -> None:
    file = tmp_path / "timeline.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match="not a timeline"):
        read_steps(str(file))


def test_too_few_steps() -> None:
    with pytest.raises(InputError, match="too few"):
        fit([])
