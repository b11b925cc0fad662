"""Values of JSON, checked as they are read; `DecodeError` for what is not as expected."""

from typing import Any

import orjson

from common.messages import FinishReason

FINISH_REASONS = {reason.value: reason for reason in FinishReason}


class DecodeError(Exception):
    """What was read is no message of this version; the text says why."""


def load(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"no JSON: {error}") from None


def text(value: Any) -> str:
    if type(value) is not str:
        raise DecodeError(f"text expected: {value!r:.40}")
    return value


def integer(value: Any) -> int:
    if type(value) is not int:
        raise DecodeError(f"integer expected: {value!r:.40}")
    return value


def count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise DecodeError(f"integer from 0 expected: {value!r:.40}")
    return value


def number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise DecodeError(f"number expected: {value!r:.40}")
    return float(value)


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise DecodeError(f"true or false expected: {value!r:.40}")
    return value


def array(value: Any) -> list[Any]:
    if type(value) is not list:
        raise DecodeError(f"list expected: {value!r:.40}")
    return value


def integers(value: Any) -> tuple[int, ...]:
    """Integers from 0; checked without a loop, since prompts are long."""
    values = array(value)
    if values and (set(map(type, values)) != {int} or min(values) < 0):
        raise DecodeError(f"list of integers from 0 expected: {value!r:.40}")
    return tuple(values)


def mapping(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise DecodeError(f"object expected: {value!r:.40}")
    return value


def finish_reason(value: Any) -> FinishReason:
    if type(value) is not str or value not in FINISH_REASONS:
        raise DecodeError(f"no finish reason: {value!r:.40}")
    return FINISH_REASONS[value]
