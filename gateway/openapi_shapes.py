"""JSON Schemas of what the API takes and answers, made of what the parsers know; pure."""

from collections.abc import Mapping
from typing import Any

from gateway.body import INT64
from gateway.chat_messages import OFF_MESSAGE, ROLES
from gateway.parameters import (
    MAX_TARGET_MS,
    MIN_TARGET_MS,
    OFF_BOTH,
    OFF_CHAT,
    OFF_COMPLETION,
    OFF_STREAM_OPTIONS,
    STREAM_OPTIONS,
    ApiLimits,
)
from gateway.wishes import FLAGS, MAX_KEY

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def request_shapes(limits: ApiLimits) -> dict[str, Schema]:
    """Bodies of both POST routes. A field that is null counts as absent."""
    token = integer(0, limits.vocab_size - 1)
    both = _both(limits, token)
    max_tokens = nullable(integer(1, INT64))
    chat = both | {
        "messages": array({"$ref": "#/components/schemas/Message"}, at_least=1),
        "max_tokens": max_tokens,
        "max_completion_tokens": max_tokens,
        **_off(OFF_CHAT),
    }
    completion = both | {
        "prompt": _prompt(token),
        "max_tokens": max_tokens,
        "best_of": nullable(integer(1, limits.max_choices) | _says("as n")),
        **_off(OFF_COMPLETION),
    }
    return {
        "ChatRequest": closed(chat, "model", "messages"),
        "CompletionRequest": closed(completion, "model", "prompt"),
        "Message": _message(),
    }


def answer_shapes() -> dict[str, Schema]:
    count = integer(0)
    usage = closed(
        {
            "prompt_tokens": count,
            "completion_tokens": count,
            "total_tokens": count,
            "prompt_tokens_details": closed({"cached_tokens": count}, "cached_tokens"),
        },
        *("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"),
    )
    message = {"role": {"const": "assistant"}, "content": STRING, "refusal": NULL}
    texts = {"message": closed(message, *message)}
    model = {
        "id": STRING,
        "object": {"const": "model"},
        "created": count,
        "owned_by": STRING,
        "max_model_len": count,
    }
    models = {
        "object": {"const": "list"},
        "data": array({"$ref": "#/components/schemas/Model"}),
    }
    error = {
        "message": STRING,
        "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
        "param": nullable(STRING),
        "code": nullable(STRING),
    }
    health = {"status": {"enum": ["ok", "unavailable"]}, "reason": STRING}
    return {
        "Usage": usage,
        "Chat": _answer("chat.completion", texts),
        "Completion": _answer("text_completion", {"text": STRING}),
        "Model": closed(model, *model),
        "Models": closed(models, *models),
        "Error": closed({"error": closed(error, *error)}, "error"),
        "Health": closed(health, "status"),
        "Version": closed({"version": STRING}, "version"),
    }


def request_headers() -> dict[str, Schema]:
    """Of requests, by name. On a POST, `Last-Event-ID` means something under a key only."""
    return {
        "Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
        "X-Resumable": {"enum": list(FLAGS)},
        "Last-Event-ID": STRING,
    }


def integer(minimum: int, maximum: int | None = None) -> Schema:
    return {"type": "integer", "minimum": minimum} | (
        {} if maximum is None else {"maximum": maximum}
    )


def number(minimum: float, maximum: float) -> Schema:
    return {"type": "number", "minimum": minimum, "maximum": maximum}


def array(items: Schema, at_least: int = 0, at_most: int | None = None) -> Schema:
    bounds = {"minItems": at_least} | ({} if at_most is None else {"maxItems": at_most})
    return {"type": "array", "items": items} | bounds


def closed(properties: Mapping[str, Schema], *required: str) -> Schema:
    """An object that has these fields and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def _both(limits: ApiLimits, token: Schema) -> dict[str, Schema]:
    stop = {"type": "string", "minLength": 1, "maxLength": limits.max_stop_chars}
    flags = {name: nullable(BOOLEAN) for name in STREAM_OPTIONS}
    options = {**flags, **_off(OFF_STREAM_OPTIONS)}
    given = {
        "n": integer(1, limits.max_choices),
        "min_tokens": integer(0, INT64),
        "seed": integer(-INT64, INT64 - 1),
        "temperature": number(0.0, 2.0),
        "top_p": number(0.0, 1.0),
        "top_k": integer(-1, INT64),
        "min_p": number(0.0, 1.0),
        "presence_penalty": number(-2.0, 2.0),
        "frequency_penalty": number(-2.0, 2.0),
        "repetition_penalty": number(0.01, 100.0),
        "logit_bias": _logit_bias(limits),
        "stop": {"anyOf": [stop, array(stop, at_most=limits.max_stop)]},
        "stop_token_ids": array(token, at_most=limits.max_stop_token_ids),
        "ignore_eos": BOOLEAN,
        "stream": BOOLEAN,
        "stream_options": closed(options) | _says("with stream only"),
        "priority": integer(-(1 << 31), (1 << 31) - 1),
        "ttft_target_ms": number(MIN_TARGET_MS, MAX_TARGET_MS),
        "user": {"type": "string", "maxLength": 1024},
    }
    return {
        "model": {"const": limits.model},
        **{name: nullable(schema) for name, schema in given.items()},
        **_off(OFF_BOTH),
    }


def _logit_bias(limits: ApiLimits) -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": number(-100.0, 100.0),
        "maxProperties": limits.max_logit_bias,
    } | _says("by token id")


def _off(off: Mapping[str, tuple[Any, ...]]) -> dict[str, Schema]:
    """What is known but not supported takes the values that mean that it is off."""
    return {key: {"enum": [None, *_distinct(harmless)]} for key, harmless in off.items()}


def _distinct(values: tuple[Any, ...]) -> list[Any]:
    """Without those that JSON does not tell from an earlier one: 1.0 from 1."""
    found: list[Any] = []
    for value in values:
        if not any(value == other and (value is True) == (other is True) for other in found):
            found.append(value)
    return found


def _prompt(token: Schema) -> Schema:
    text = {"type": "string", "minLength": 1}
    tokens = array(token, at_least=1)
    return {"anyOf": [text, array(text, at_least=1), tokens, array(tokens, at_least=1)]}


def _message() -> Schema:
    part = closed({"type": {"const": "text"}, "text": STRING}, "type", "text")
    content = {"anyOf": [STRING, array(part, at_least=1)]}
    others = {
        "name": nullable({"type": "string", "maxLength": 64}),
        "tool_call_id": nullable({"type": "string", "maxLength": 256}),
        "reasoning_content": nullable(STRING),
        **_off(OFF_MESSAGE),
    }
    silent = closed({"role": {"const": "assistant"}, "content": NULL, **others}, "role")
    return {
        "anyOf": [
            closed(
                {"role": {"enum": list(ROLES)}, "content": content, **others}, "role", "content"
            ),
            silent,
        ]
    }


def _answer(kind: str, texts: Mapping[str, Schema]) -> Schema:
    reasons = ["stop", "length"]
    choice = {
        "index": integer(0),
        **texts,
        "logprobs": NULL,
        "finish_reason": {"enum": reasons},
    }
    answer = {
        "id": STRING,
        "object": {"const": kind},
        "created": integer(0),
        "model": STRING,
        "system_fingerprint": NULL,
        "choices": array(closed(choice, *choice), at_least=1),
        "usage": {"$ref": "#/components/schemas/Usage"},
    }
    return closed(answer, *answer)


def _says(text: str) -> Schema:
    return {"description": text}
