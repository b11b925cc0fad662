"""Bodies of the API: what acts, what is refused, and how it is said."""

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import GatewayId, SubmissionId, Submit
from gateway.errors import BadRequestError
from gateway.openai import (
    Arrival,
    Call,
    parse_chat,
    parse_completion,
    submit_of,
)
from gateway.parameters import ApiLimits

LIMITS = ApiLimits("m", vocab_size=100, max_choices=8)
ARRIVAL = Arrival(SubmissionId("s1"), GatewayId("g1"), created=7, seed=5)
MESSAGES = [{"role": "user", "content": "hi"}]


def body_of(fields: dict[str, Any]) -> bytes:
    """By the standard library, which writes numbers of any size."""
    return json.dumps({"model": "m"} | fields).encode()


def chat(**more: Any) -> Call:
    return parse_chat(body_of({"messages": MESSAGES} | more), LIMITS)


def completion(**more: Any) -> Call:
    return parse_completion(body_of({"prompt": "hi"} | more), LIMITS)


def submit(call: Call, num_prompt: int = 3, max_request_tokens: int = 20) -> Submit:
    return submit_of(
        call,
        [[1] * num_prompt],
        ARRIVAL,
        end_tokens=(2, 9),
        max_request_tokens=max_request_tokens,
    )


def refused(parse: Any, /, **more: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        parse(**more)
    body = orjson.loads(caught.value.body())
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return caught.value


def test_every_parameter_acts() -> None:
    made = submit(
        chat(
            max_completion_tokens=4,
            min_tokens=2,
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            seed=-1,
            stop=["a", "b", "a"],
            stop_token_ids=[4, 3],
            presence_penalty=-2,
            frequency_penalty=2,
            repetition_penalty=1.1,
            logit_bias={"5": -100, "6": 1.5},
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            priority=-3,
            ttft_target_ms=250,
            user="u",
        )
    )
    sampling, ending = made.sampling, made.ending
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed) == (0.1, (1 << 63) - 1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 2.0)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((5, -100.0), (6, 1.5))
    assert (ending.max_tokens, ending.min_tokens, ending.end_tokens) == (4, 2, (2, 3, 4, 9))
    assert (made.n, made.priority, made.num_choices) == (2, -3, 2)
    assert made.ttft_target_seconds == 0.25
    assert made.frame == {
        "chat": True,
        "model": "m",
        "created": 7,
        "num_choices": 2,
        "n": 2,
        "num_prompt_tokens": 3,
        "stream": True,
        "include_usage": True,
        "usage_prompts": [],
        "stop": ["a", "b"],
        "min_tokens": 2,
        "hidden": [3, 4],
        "in_turn": False,
    }


def test_what_is_not_given_has_the_defaults_of_the_api() -> None:
    made = submit(completion())
    sampling = made.sampling
    assert (sampling.seed, sampling.temperature, sampling.top_p) == (5, 1.0, 1.0)
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (0, 0.0, 1.0)
    assert made.ending.max_tokens == 17  # what the context leaves
    assert made.ending.end_tokens == (2, 9)
    assert made.frame["stream"] is made.frame["chat"] is False


@pytest.mark.parametrize("value", [True, False, None])
def test_usage_in_every_chunk_needs_the_length_of_each_prompt(value: bool | None) -> None:
    options = {"continuous_usage_stats": value}
    prompts = [[1], [2, 3]]
    call = completion(stream=True, stream_options=options, prompt=prompts)
    made = submit_of(call, prompts, ARRIVAL, end_tokens=(9,), max_request_tokens=20)
    assert made.frame["usage_prompts"] == ([1, 2] if value else [])
    assert made.frame["include_usage"] is False


@pytest.mark.parametrize("value", [1, "true", [], {}])
def test_an_option_of_streams_is_a_boolean(value: Any) -> None:
    options = {"continuous_usage_stats": value}
    error = refused(chat, stream=True, stream_options=options)
    assert error.param == "stream_options.continuous_usage_stats"
    assert error.code == "invalid_type"


def test_null_is_absent() -> None:
    names = "max_tokens temperature top_p seed stop n stream stream_options logit_bias user"
    absent = dict.fromkeys([*names.split(), "tools", "logprobs", "response_format"])
    assert submit(chat(**absent)) == submit(chat())


def test_ignore_eos_keeps_what_the_client_named() -> None:
    made = submit(completion(ignore_eos=True, stop_token_ids=[9]))
    assert made.ending.end_tokens == (9,)


def test_top_p_of_zero_leaves_the_likeliest_token() -> None:
    assert submit(chat(top_p=0)).sampling.top_k == 1
    assert submit(chat(top_k=-1)).sampling.top_k == 0
    assert submit(chat(top_k=10**6)).sampling.top_k == 100


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 99], ((1, 99),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_come_in_four_shapes(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompts == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "prompt", [None, [], {}, 5, True, ["a", 1], [1, "a"], [[1], "a"], [100], [-1], [1.5], [True]]
)
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert refused(completion, prompt=prompt).param == "prompt"


@pytest.mark.parametrize("prompt", [[[]], [[1], []], [""]])
def test_an_empty_prompt_is_refused(prompt: list[Any]) -> None:
    call = completion(prompt=prompt)
    tokens = [[1] if one else [] for one in prompt]
    with pytest.raises(BadRequestError, match="empty"):
        submit_of(call, tokens, ARRIVAL, end_tokens=(), max_request_tokens=20)


OUT_OF_RANGE = {
    "max_tokens": [0, -1, 1.5, "5", True, 1 << 70, 1e300, [], {}],
    "temperature": [-0.1, 2.1, "1", True, [], 1 << 100],
    "top_p": [-0.1, 1.1, "x", False],
    "top_k": [-2, 0.5, "x"],
    "min_p": [-1, 2],
    "seed": [1 << 63, -(1 << 63) - 1, 0.5, "x", True],
    "stop": [5, [5], [None], "", [""], ["x"] * 17, {"a": 1}, "x" * 2000],
    "stop_token_ids": ["5", [100], [-1], [True], [0.5], [[1]], [1] * 200],
    "ignore_eos": [1, "true"],
    "min_tokens": [-1, "x"],
    "presence_penalty": [2.1, -2.1],
    "frequency_penalty": [2.1, -2.1],
    "repetition_penalty": [0, -1, 1000],
    "logit_bias": [[], "x", {"a": 1}, {"100": 1}, {"-1": 1}, {"1": 101}, {"1": "x"}, {"²": 1}],
    "n": [0, -1, 9, 1 << 62, "1", True],
    "stream": [1, "true"],
    "priority": [1 << 40, "high"],
    "ttft_target_ms": [0, -1, 1e12, "fast", True, []],
    "user": [5, "x" * 2000],
}


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in OUT_OF_RANGE for value in OUT_OF_RANGE[name]]
)
def test_bad_values_are_refused_by_name(parse: Any, name: str, value: Any) -> None:
    error = refused(parse, **{name: value})
    assert error.status == 400
    assert (error.param or "").split(".")[0] == name
    assert name in error.message


UNSUPPORTED = {
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "logprobs": True,
    "top_logprobs": 2,
    "audio": {},
    "modalities": ["audio"],
    "prediction": {"type": "content"},
    "functions": [{}],
    "function_call": "x",
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "reasoning_effort": "low",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(name: str) -> None:
    error = refused(chat, **{name: UNSUPPORTED[name]})
    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "more", [{"suffix": "x"}, {"echo": True}, {"logprobs": 0}, {"best_of": 2}, {"best_of": 0}]
)
def test_what_completions_do_not_support_is_refused_by_name(more: dict[str, Any]) -> None:
    assert refused(completion, **more).param == next(iter(more))


def test_what_means_off_is_accepted() -> None:
    off = {"tools": [], "tool_choice": "none", "logprobs": False, "store": False}
    off |= {"response_format": {"type": "text"}, "parallel_tool_calls": True, "metadata": {}}
    assert submit(chat(**off, service_tier="auto")) == submit(chat())
    assert submit(completion(best_of=2, n=2, echo=False, suffix="")).n == 2
    assert completion(best_of=1).params.n == 1


def test_one_is_not_true() -> None:
    assert refused(chat, store=0).param == "store"


def test_unknown_parameters_are_refused_by_name() -> None:
    error = refused(chat, temprature=1)
    assert error.message == "Unrecognized request argument supplied: temprature"
    assert refused(chat, prompt="x").param == "prompt"
    assert refused(completion, messages=[]).param == "messages"
    assert refused(completion, max_completion_tokens=5).param == "max_completion_tokens"
    options = {"include_usage": True, "x": 1}
    assert refused(chat, stream=True, stream_options=options).param == "stream_options.x"


def test_parameters_that_contradict_each_other_are_refused() -> None:
    assert refused(chat, max_tokens=5, max_completion_tokens=5).param == "max_tokens"
    assert refused(chat, max_tokens=5, min_tokens=6).param == "min_tokens"
    assert refused(chat, stream_options={"include_usage": True}).param == "stream_options"
    assert refused(completion, prompt=["a"] * 3, n=3).param == "n"


def test_another_model_is_not_found() -> None:
    error = refused(chat, model="gpt-4")
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert refused(chat, model=None).status == 400
    assert refused(chat, model=5).param == "model"


@pytest.mark.parametrize("more", [{}, {"max_tokens": 5}, {"min_tokens": 3}])
def test_what_does_not_fit_is_refused_with_the_numbers(more: dict[str, Any]) -> None:
    wanted = max(more.values(), default=1)
    assert submit(chat(**more), 20 - wanted).ending.max_tokens == wanted
    with pytest.raises(BadRequestError) as caught:
        submit(chat(**more), 21 - wanted)
    assert caught.value.code == "context_length_exceeded"
    for number in ("20 tokens", "21 tokens", f"{21 - wanted} in", f"{wanted} in"):
        assert number in caught.value.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("x", "messages"),
        (["x"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([*MESSAGES, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            "messages[0].content[0].text",
        ),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x", "y": 1}], "messages[0].y"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
    ],
)
def test_bad_messages_are_refused_by_place(messages: Any, param: str) -> None:
    assert refused(chat, messages=messages).param == param


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = chat(messages=[{"role": "user", "content": parts}, {"role": "assistant"}])
    assert call.messages == (  # type: ignore[union-attr]
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""},
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"model": NaN}',
        b'{"model":"m","messages":[],"temperature":Infinity}',
        b'{"model":"m","seed":1%s}' % (b"0" * 400),
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model":"m"} x',
    ],
)
@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
def test_what_is_no_json_object_is_refused(body: bytes, parse: Any) -> None:
    with pytest.raises(BadRequestError):
        parse(body, LIMITS)


NAMES = [*OUT_OF_RANGE, *UNSUPPORTED, "messages", "prompt", "model", "stream_options", "best_of"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["m", "user", "text", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "1", "include_usage", "name"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.booleans())
def test_any_body_is_understood_or_refused(fields: dict[str, Any], is_chat: bool) -> None:
    base = {"messages": MESSAGES} if is_chat else {"prompt": "hi"}
    parse = parse_chat if is_chat else parse_completion
    try:
        call = parse(body_of(base | fields), LIMITS)
        made = submit_of(call, [[1]], ARRIVAL, end_tokens=(2,), max_request_tokens=1 << 20)
    except BadRequestError as error:
        assert error.status in {400, 404}  # noqa: PT017  one of two right outcomes
        return
    assert orjson.loads(orjson.dumps(made.frame)) == made.frame
    assert 0 <= made.sampling.seed < 1 << 63
    assert math.isfinite(made.sampling.temperature)
