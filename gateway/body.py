"""A request's JSON body: values checked one by one, with messages that name them; pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.errors import BadRequestError

INT64 = 1 << 63


class Body:
    """A JSON object of which every field must be taken: what is left over was not understood.

    A field that is null counts as absent, as OpenAI has it.
    """

    def __init__(self, fields: Mapping[str, Any], at: str = "") -> None:
        """`at`: where the object stands in the body, for messages: `messages[0].`."""
        self._left = dict(fields)
        self._at = at

    def name(self, key: str) -> str:
        return self._at + key

    def take(self, key: str) -> Any:
        """The value as it is, or None."""
        return self._left.pop(key, None)

    def string(self, key: str, default: str | None = None, *, max_length: int = 1024) -> str | None:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(self.name(key), "a string", value)
        if len(value) > max_length:
            raise BadRequestError(
                f"Invalid '{self.name(key)}': string too long. Expected at most {max_length} "
                f"characters, but got {len(value)}.",
                self.name(key),
                "string_above_max_length",
            )
        return value

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.name(key), "a boolean", value)
        return value

    def integer(self, key: str, default: Any, minimum: int, maximum: int) -> Any:
        """An int in [minimum, maximum], or `default` if absent."""
        value = self.take(key)
        if value is None:
            return default
        return checked_integer(value, self.name(key), minimum, maximum)

    def number(self, key: str, default: float, minimum: float, maximum: float) -> float:
        """A finite number in [minimum, maximum]."""
        value = self.take(key)
        if value is None:
            return default
        return checked_number(value, self.name(key), minimum, maximum)

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise wrong_type(self.name(key), "an object", value)
        return value

    def refuse(self, off: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse what is known but not supported, except values that mean that it is off."""
        for key, harmless in off.items():
            value = self.take(key)
            if value is None or any(
                value == allowed and type(value) is type(allowed) for allowed in harmless
            ):
                continue
            raise BadRequestError(
                f"'{self.name(key)}' is not supported by this server.",
                self.name(key),
                "unsupported_parameter",
            )

    def close(self) -> None:
        """Every field was taken, or the first that was not is named."""
        for key in self._left:
            raise BadRequestError(
                f"Unrecognized request argument supplied: {self._at}{key[:100]}",
                self._at + key[:100],
                "unknown_parameter",
            )


def parse_object(body: bytes) -> Body:
    """The body's JSON object; refuses what is not UTF-8, not JSON, too deep, or no object."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequestError(
            "We could not parse the JSON body of your request.", code="invalid_json"
        ) from None
    if not isinstance(fields, dict):
        raise BadRequestError("The body must be a JSON object.", code="invalid_json")
    return Body(fields)


def checked_integer(value: Any, name: str, minimum: int, maximum: int) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < INT64:
        value = int(value)  # 16.0: JSON does not tell them apart
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer", value)
    _check_range(value, name, minimum, maximum, "integer")
    return value


def checked_number(value: Any, name: str, minimum: float, maximum: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong_type(name, "a finite number", value)
    _check_range(value, name, minimum, maximum, "decimal")
    return float(value)


def checked_tokens(values: Iterable[Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """Token ids, each in [0, vocab_size)."""
    tokens = tuple(values)
    for token in tokens:
        if type(token) is not int:
            raise wrong_type(name, "an array of token ids", token)
        if not 0 <= token < vocab_size:
            raise BadRequestError(
                f"Invalid '{name}': token id {token} is not in the vocabulary "
                f"of {vocab_size} tokens.",
                name,
                "invalid_token_id",
            )
    return tokens


def wrong_type(name: str, expected: str, value: Any) -> BadRequestError:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    got = "null" if value is None else kinds.get(type(value), "a number")
    return BadRequestError(
        f"Invalid type for '{name}': expected {expected}, but got {got} instead.",
        name,
        "invalid_type",
    )


def _check_range(value: float, name: str, minimum: float, maximum: float, kind: str) -> None:
    if value < minimum:
        raise BadRequestError(
            f"Invalid '{name}': {kind} below minimum value. Expected a value >= {minimum}, "
            f"but got {value} instead.",
            name,
            f"{kind}_below_min_value",
        )
    if value > maximum:
        raise BadRequestError(
            f"Invalid '{name}': {kind} above maximum value. Expected a value <= {maximum}, "
            f"but got {value} instead.",
            name,
            f"{kind}_above_max_value",
        )
