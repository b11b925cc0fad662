"""What is asked and when, without a server."""

import itertools
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from cli.bench.options import Options
from cli.bench.prompts import prompt_of
from cli.bench.workload import Conversation, WorkloadError, conversations, made, warm_up

BASE = Options(prompt_tokens=6, output_tokens=3, requests=200)


def asked(options: Options) -> list[Conversation]:
    return list(conversations(options))


def prompts(options: Options) -> list[list[int]]:
    found = [prompt_of(options, c.turns[0].parts)["prompt"] for c in asked(options)]
    return [prompt for prompt in found if isinstance(prompt, list)]


def test_the_same_seed_asks_the_same() -> None:
    options = replace(BASE, rate=3.0, prompt_tokens="uniform:1:99")
    assert asked(options) == asked(options)
    assert prompts(options) == prompts(options)
    assert asked(options) != asked(replace(options, seed=1))


def test_lengths_are_drawn_from_their_distributions() -> None:
    options = replace(BASE, prompt_tokens="uniform:5:9", output_tokens="lognormal:mean=40:sd=10")
    turns = [conversation.turns[0] for conversation in asked(options)]
    assert {turn.parts[0].tokens for turn in turns} == {5, 6, 7, 8, 9}
    assert statistics.mean(turn.output_tokens for turn in turns) == pytest.approx(40, rel=0.1)
    assert statistics.stdev(turn.output_tokens for turn in turns) == pytest.approx(10, rel=0.3)


def test_a_length_that_is_drawn_has_a_bound() -> None:
    long = "lognormal:1000000:10"
    turns = [c.turns[0] for c in asked(replace(BASE, prompt_tokens=long, output_tokens=long))]
    assert max(turn.output_tokens for turn in turns) == 1 << 20
    assert max(turn.parts[0].tokens for turn in turns) == 1 << 20


def test_prompts_share_one_of_the_prefixes() -> None:
    options = replace(BASE, prefix_tokens=4, prefixes=3)
    found = prompts(options)
    assert all(len(prompt) == 10 for prompt in found)
    assert len({tuple(prompt[:4]) for prompt in found}) == 3
    assert len({tuple(prompt[4:]) for prompt in found}) == 200
    assert [prompt[4:] for prompt in found] == prompts(BASE)


def test_turns_have_prompts_of_their_own() -> None:
    options = replace(BASE, turns=3, prefix_tokens=4)
    first, *later = made(options, 0, None).turns
    assert [part.tokens for part in first.parts] == [4, 6]
    assert [[part.tokens for part in turn.parts] for turn in later] == [[6], [6]]
    texts = {str(prompt_of(options, turn.parts)) for turn in (first, *later)}
    assert len(texts) == 3


def test_without_a_rate_nothing_has_a_time() -> None:
    assert {conversation.at for conversation in asked(BASE)} == {None}


def gaps(options: Options) -> list[float]:
    times = [0.0, *(c.at or 0.0 for c in asked(replace(options, requests=4000)))]
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize(("shape", "variation"), [(1.0, 1.0), (0.25, 2.0), (16.0, 0.25)])
def test_gaps_follow_the_gamma_distribution(shape: float, variation: float) -> None:
    found = gaps(replace(BASE, rate=5.0, gamma_shape=shape))
    assert statistics.mean(found) == pytest.approx(0.2, rel=0.1)
    spread = statistics.stdev(found) / statistics.mean(found)
    assert spread == pytest.approx(variation, rel=0.15)


def test_the_duration_bounds_arrivals() -> None:
    options = replace(BASE, rate=50.0, duration=10.0, requests=None)
    times = [conversation.at or 0.0 for conversation in asked(options)]
    assert 430 < len(times) < 570
    assert max(times) <= 10.0


def write(folder: Path, *lines: str) -> str:
    file = folder / "trace"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_hashes_of_a_trace_are_equal_beginnings(tmp_path: Path) -> None:
    rows = (
        '{"timestamp": 1000, "input_length": 1030, "output_length": 7, "hash_ids": [4, 5, 6]}',
        '{"timestamp": 2000, "input_length": 600, "output_length": 8, "hash_ids": [4, 9]}',
        '{"timestamp": 5000, "input_length": 700, "output_length": 9, "hash_ids": [4, 9]}',
    )
    options = Options(trace=write(tmp_path, *rows), rate_scale=2.0)
    one, two, three = prompts(options)
    assert [len(one), len(two), len(three)] == [1030, 600, 700]
    assert one[:512] == two[:512]
    assert one[512:600] != two[512:600]
    assert three[:600] == two
    assert [c.at for c in asked(options)] == [0.0, 0.5, 2.0]
    assert [c.turns[0].output_tokens for c in asked(options)] == [7, 8, 9]
    other = prompts(replace(options, seed=1))
    assert other[0][:512] == other[1][:512] != one[:512]


CSV = ("arrival_s,tenant,prompt_tokens,output_tokens", "5,a,3,4", "6,a,5,6", "8,b,7,8")


def test_a_trace_may_be_cut(tmp_path: Path) -> None:
    options = Options(trace=write(tmp_path, *CSV))
    assert len(asked(options)) == 3
    assert len(asked(replace(options, requests=2))) == 2
    assert len(asked(replace(options, duration=1.5))) == 2
    assert len(asked(replace(options, duration=1.5, rate_scale=2.0))) == 3
    with pytest.raises(WorkloadError, match="has 3 requests, not 4"):
        asked(replace(options, requests=4))


def test_warm_up_of_a_trace_has_its_lengths_and_other_prompts(tmp_path: Path) -> None:
    options = Options(trace=write(tmp_path, *CSV), warmup=4)
    found = warm_up(options)
    assert [c.turns[0].parts[0].tokens for c in found] == [3, 5, 7, 3]
    seeds = {c.turns[0].parts[0].seed for c in [*found, *asked(options)]}
    assert len(seeds) == 7
