"""The OpenAPI document is true: of routes, of what parsers take, and of what is answered."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from common.messages import FinishReason
from gateway.body import Body
from gateway.errors import BadRequestError
from gateway.openai import Call, parse_chat, parse_completion
from gateway.openapi import document
from gateway.parameters import ApiLimits
from tests.gateway.client import Reply
from tests.gateway.json_schema import errors, referred
from tests.gateway.serving import Serving, serving
from tests.gateway.test_auth import ALICE, KEYS

LIMITS = ApiLimits("m", vocab_size=1000)
DOCUMENT = document(LIMITS, needs_key=False)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}
Parse = Callable[[bytes, ApiLimits], Call]
ROUTES: dict[str, tuple[Parse, dict[str, Any]]] = {
    "ChatRequest": (parse_chat, CHAT),
    "CompletionRequest": (parse_completion, COMPLETION),
}
STREAMED = {"stream_options": {"stream": True}}  # what a field needs beside it


def shape(name: str) -> dict[str, Any]:
    return dict(DOCUMENT["components"]["schemas"][name])


def refusal(name: str, **fields: Any) -> str:
    """What the parser says of a body of this shape; "": nothing."""
    parse, least = ROUTES[name]
    try:
        parse(json.dumps(least | fields).encode(), LIMITS)  # orjson writes no larger integers
    except BadRequestError as error:
        return error.message
    return ""


async def test_every_route_is_there_and_no_other() -> None:
    async with serving() as it:
        assert isinstance(it.app, Starlette)
        routes = {
            (route.path.replace(":path", ""), method.lower())
            for route in it.app.routes
            if isinstance(route, Route)
            for method in (route.methods or set()) - {"HEAD"}
        }
        told = (await it.get("/openapi.json")).json()
    assert routes == {
        (path, method) for path, it in told["paths"].items() for method in METHODS & it.keys()
    }
    assert told == orjson.loads(orjson.dumps(document(it.service.model.limits, needs_key=False)))


METHODS = {"get", "post", "put", "patch", "delete", "options", "trace"}


@pytest.mark.parametrize("name", ROUTES)
def test_every_field_that_a_parser_knows_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: set[str] = set()
    take = Body.take

    def taking(self: Body, key: str) -> Any:
        known.add(self.name(key))
        return take(self, key)

    monkeypatch.setattr(Body, "take", taking)
    assert refusal(name, stream=True, stream_options={}) == ""
    if name == "ChatRequest":
        parts = [{"type": "text", "text": "x"}]
        assert refusal(name, messages=[{"role": "user", "content": parts}]) == ""
    told = set(shape(name)["properties"])
    told |= {f"stream_options.{key}" for key in option(name, "stream_options")["properties"]}
    if name == "ChatRequest":
        for message in shape("Message")["anyOf"]:
            assert {f"messages[0].{key}" for key in message["properties"]} <= known
        told |= {f"messages[0].{key}" for key in shape("Message")["anyOf"][0]["properties"]}
        told |= {f"messages[0].content[0].{key}" for key in ("type", "text")}
    assert known == told


def option(name: str, field: str) -> dict[str, Any]:
    """What a field may be, beside null."""
    schema = shape(name)["properties"][field]
    return dict(schema["anyOf"][0] if "anyOf" in schema else schema)


def bounded(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for field in shape(name)["properties"]:
        if (schema := option(name, field)).get("type") in {"integer", "number"}:
            yield field, schema


@pytest.mark.parametrize("name", ROUTES)
def test_numbers_are_taken_up_to_their_bounds_and_not_beyond(name: str) -> None:
    num_fields = 0
    for field, schema in bounded(name):
        num_fields += 1
        low, high = schema["minimum"], schema.get("maximum")
        step = 1 if schema["type"] == "integer" else 1e-9 + abs(low) / 1e6
        beside = {"max_tokens": None} if field == "min_tokens" else {}
        for value in (low, high):
            fields = {field: value} | beside
            if field == "n":
                fields["best_of"] = value if name == "CompletionRequest" else None
                fields = {key: value for key, value in fields.items() if value is not None}
            if field == "best_of":
                fields["n"] = value
            assert refusal(name, **fields) == "", (field, value)
        for value in (low - step, high + max(step, 1)):
            if abs(value) < 1 << 64:
                assert field in refusal(name, **{field: value}), (field, value)
    assert num_fields >= 12


@pytest.mark.parametrize("name", ROUTES)
def test_what_is_not_supported_may_be_off(name: str) -> None:
    num_fields = 0
    for field, schema in shape(name)["properties"].items():
        if "enum" not in schema:
            continue
        num_fields += 1
        for value in schema["enum"]:
            assert refusal(name, **{field: value}) == "", (field, value)
        assert "not supported" in refusal(name, **{field: ["else"]})
    assert num_fields >= 10


@pytest.mark.parametrize("name", ROUTES)
def test_a_value_of_another_type_is_refused(name: str) -> None:
    for field, schema in shape(name)["properties"].items():
        for value in (True, 3, "x", [], {}):
            beside = STREAMED.get(field, {}) | (
                {"n": 3} if (field, value) == ("best_of", 3) else {}
            )
            said = refusal(name, **{field: value} | beside)
            assert bool(said) is bool(errors(value, schema, DOCUMENT)), (field, value, said)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("stop", ["x" * 1024] * 16, ["x" * 1025]),
        ("stop", "x" * 1024, ""),
        ("stop", [], ["x"] * 17),
        ("stop_token_ids", [999] * 128, [1000]),
        ("stop_token_ids", [], [0] * 129),
        ("logit_bias", {str(n): -100 for n in range(1000)}, {"x": 1}),
        ("logit_bias", {"1": 100.0}, {"1": 100.1}),
        ("user", "x" * 1024, "x" * 1025),
    ],
)
def test_sizes_are_as_told(field: str, good: Any, bad: Any) -> None:
    for name in ROUTES:
        schema = shape(name)["properties"][field]
        assert errors(good, schema, DOCUMENT) == []
        assert refusal(name, **{field: good}) == ""
        assert errors(bad, schema, DOCUMENT)
        assert refusal(name, **{field: bad})


@pytest.mark.parametrize(
    "prompt", ["x", ["x", "y"], [1, 999], [[1], [2, 3]], [], [[]], [1, "x"], [[1], "x"], [1000], 1]
)
def test_prompts_are_as_told(prompt: Any) -> None:
    schema = shape("CompletionRequest")["properties"]["prompt"]
    said = bool(errors(prompt, schema, DOCUMENT))
    assert said is (bool(refusal("CompletionRequest", prompt=prompt)) or prompt == [[]])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "name": "n" * 64},
        {"role": "tool", "content": [{"type": "text", "text": ""}], "tool_call_id": "1"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant"},
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "image_url", "text": "x"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": "x", "name": "n" * 65},
        {"role": "user", "content": "x", "more": 1},
        {"role": "nobody", "content": "x"},
        {"content": "x"},
    ],
)
def test_messages_are_as_told(message: Any) -> None:
    said = bool(errors(message, shape("Message"), DOCUMENT))
    assert said is bool(refusal("ChatRequest", messages=[message]))


async def test_answers_are_as_told() -> None:
    async with serving() as it:
        told = (await it.get("/openapi.json")).json()
        chat = await it.chat().over()
        check(told, "/v1/chat/completions", "post", chat)
        check(told, "/v1/chat/completions", "post", await it.chat(stream=True).over())
        check(told, "/v1/chat/completions", "post", await it.chat(n=0).over())
        check(told, "/v1/completions", "post", await it.complete(n=2, max_tokens=2).over())
        check(told, "/v1/completions", "post", await it.call("/v1/completions", b"{").over())
        await it.settled()
        for name in (chat.headers["x-stream-id"], "none"):
            check(told, "/v1/streams/{stream}", "get", await it.get(f"/v1/streams/{name}"))
        for name in (it.service.model.name, "other"):
            check(told, "/v1/models/{model}", "get", await it.get(f"/v1/models/{name}"))
        for path in ("/v1/models", "/health", "/ready", "/version", "/metrics", "/openapi.json"):
            check(told, path, "get", await it.get(path))
        it.service.is_draining = True
        check(told, "/ready", "get", await it.get("/ready"))


async def test_failures_are_as_told() -> None:
    async with serving() as it:
        told = (await it.get("/openapi.json")).json()
        for reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR):
            call = it.complete()
            await it.until(lambda: bool(it.pool.running))
            it.pool.end(next(iter(it.pool.running)), reason)
            reply = await call.over()
            assert reply.status >= 499
            check(told, "/v1/completions", "post", reply)


async def test_what_needs_a_key_is_told_so() -> None:
    async with serving(keys=KEYS) as it:
        told = (await it.get("/openapi.json", authorization=f"Bearer {ALICE}")).json()
        assert told["security"] == [{"key": []}]
        for path, methods in told["paths"].items():
            for method, about in methods.items():
                if method not in METHODS:
                    continue
                reply = await call_at(it, path, method)
                needs = about.get("security", told["security"]) != []
                assert (reply.status == 401) is needs, path
                check(told, path, method, reply)


async def call_at(it: Serving, path: str, method: str) -> Reply:
    return await it.call(path.replace("{", "").replace("}", ""), b"{}", method.upper()).over()


def check(told: dict[str, Any], path: str, method: str, reply: Reply) -> None:
    """The answer is one of those in the document."""
    answers = told["paths"][path][method]["responses"]
    assert str(reply.status) in answers, (path, reply)
    kinds = answers[str(reply.status)]["content"]
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind in kinds, (path, kind)
    value = reply.json() if kind == "application/json" else reply.body.decode()
    assert errors(value, kinds[kind].get("schema", {}), told) == []


def test_every_reference_leads_somewhere() -> None:
    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (told for key, told in value.items() if key == "$ref")
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from walk(item)

    refs = set(walk(DOCUMENT))
    assert refs
    assert all(referred(ref, DOCUMENT) for ref in refs)
