"""Counted once, after the fact, and under the names that dashboards know."""

from prometheus_client.parser import text_string_to_metric_families

from common.messages import FinishReason
from common.metrics import ALIASES
from tests.gateway.serving import TEXT, Serving, requests_of, serving, tokens_of

LENGTH = len(tokens_of(TEXT))


async def samples(it: Serving) -> dict[str, float]:
    """Values by name; labels other than the model's are appended."""
    text = (await it.get("/metrics")).body.decode()
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in {"model_name", "le"}}
            assert sample.labels["model_name"] == it.service.model.name
            values[" ".join([sample.name, *labels.values()])] = sample.value
    return values


async def test_every_answer_is_counted_once_however_it_ends() -> None:
    async with serving() as it:
        await it.chat(stream=True).over()
        await it.chat().over()
        await it.complete(n=2, max_tokens=3).over()
        await it.complete(stop=["word after"]).over()
        await it.call("/v1/completions", b"{").over()
        values = await samples(it)
    prompts = sum(len(submit.prompts[0]) for submit in it.pool.submits)
    stopped = next(c.kept for c in it.pool.controls)
    assert values["chairlift_prompt_tokens_total"] == prompts
    assert values["chairlift_output_tokens_total"] == 2 * LENGTH + 2 * 3 + stopped
    assert values["chairlift_choices_total stop"] == 3
    assert values["chairlift_choices_total length"] == 2
    assert values["chairlift_responses_total 200"] == 4
    assert values["chairlift_responses_total 400"] == 1
    assert values["chairlift_e2e_seconds_count"] == 4
    assert values["chairlift_ttft_seconds_count"] == 4
    assert values["chairlift_request_output_tokens_count"] == 5
    assert values["chairlift_tpot_seconds_count"] == 5
    assert values["chairlift_open_answers"] == 0


async def test_an_answer_that_is_cut_off_is_counted_too() -> None:
    async with serving(lambda _request: [1234] * 5000) as it:
        left, failed = it.chat(stream=True), it.chat()
        await it.until(lambda: len(it.pool.running) == 2)
        assert (await samples(it))["chairlift_open_answers"] == 2
        await left.until(lambda call: call.body.count(b"data:") > 3)
        left.leave()
        await left.over()
        it.pool.end(requests_of(it)[1], FinishReason.ERROR)
        await failed.over()
        values = await samples(it)
    assert values["chairlift_open_answers"] == 0
    assert values["chairlift_choices_total abort"] == 1
    assert values["chairlift_choices_total error"] == 1
    assert values["chairlift_prompt_tokens_total"] == 2 * len(it.pool.submits[0].prompts[0])
    assert values["chairlift_output_tokens_total"] > 3


async def test_aliases_say_the_same_and_are_vllms_names() -> None:
    async with serving() as it:
        await it.chat(stream=True).over()
        values = await samples(it)
    for ours, alias in ALIASES:
        same = {name: value for name, value in values.items() if name.startswith(alias)}
        assert same, alias
        for name, value in same.items():
            assert values[name.replace(alias, ours)] == value
    assert values["vllm:generation_tokens_total"] == LENGTH
    assert values["vllm:time_to_first_token_seconds_count"] == 1
    # Tokens that come together count once.
    assert 0 < values["vllm:time_per_output_token_seconds_count"] < LENGTH
    assert values["vllm:request_success_total stop"] == 1
    assert {name.partition(" ")[0] for name in values} >= {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prompt_tokens_total",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
    }
