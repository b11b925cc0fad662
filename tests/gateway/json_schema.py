"""JSON Schema, as far as the gateway's own OpenAPI document uses it."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[..., Any]  # of a value against what a keyword says
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
KNOWN = {  # keywords that constrain nothing, or are looked at with another one
    *("description", "properties", "required", "additionalProperties", "propertyNames"),
}


def errors(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str = ""
) -> list[str]:
    """Where `value` is not as `schema` says; `root` is the whole document."""
    return list(_errors(value, schema, root, at))


def _errors(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    for keyword, told in schema.items():
        if keyword in NESTED:
            yield from NESTED[keyword](value, told, root, at)
        elif keyword not in KNOWN and not SIMPLE[keyword](value, told):
            yield f"{at}: {value!r} is not as {keyword} {told!r}"
    if isinstance(value, dict):
        yield from _object_errors(value, schema, root, at)


def _ref_errors(value: Any, ref: str, root: Mapping[str, Any], at: str) -> Iterator[str]:
    return _errors(value, referred(ref, root), root, at)


def _any_errors(value: Any, options: list[Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    found = [errors(value, option, root, at) for option in options]
    if all(found):
        yield f"{at}: none of {found}"


def _item_errors(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _errors(item, schema, root, f"{at}[{index}]")


def _object_errors(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    yield from (
        f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value
    )
    others = schema.get("additionalProperties", {})
    for name, item in value.items():
        one = schema.get("properties", {}).get(name, others)
        if one is False:
            yield f"{at}.{name} is unknown"
        else:
            yield from _errors(item, one, root, f"{at}.{name}")
        yield from _errors(name, schema.get("propertyNames", {}), root, f"{at}: name")


def referred(ref: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for part in ref.removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def _is(value: Any, kind: str) -> bool:
    if kind in {"integer", "number"}:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind == "number" or value == int(value))
    return isinstance(value, TYPES[kind])


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _has_size(value: Any, kind: type, bound: int, sign: int) -> bool:
    return not isinstance(value, kind) or sign * len(value) <= sign * bound


def _has_value(value: Any, bound: float, sign: int) -> bool:
    return not _is(value, "number") or sign * value <= sign * bound


SIMPLE: dict[str, Check] = {
    "type": _is,
    "const": _same,
    "enum": lambda value, told: any(_same(value, other) for other in told),
    "minimum": lambda value, told: _has_value(value, told, -1),
    "maximum": lambda value, told: _has_value(value, told, 1),
    "minLength": lambda value, told: _has_size(value, str, told, -1),
    "maxLength": lambda value, told: _has_size(value, str, told, 1),
    "minItems": lambda value, told: _has_size(value, list, told, -1),
    "maxItems": lambda value, told: _has_size(value, list, told, 1),
    "maxProperties": lambda value, told: _has_size(value, dict, told, 1),
    "pattern": lambda value, told: not isinstance(value, str) or bool(re.search(told, value)),
}
NESTED: dict[str, Check] = {"$ref": _ref_errors, "anyOf": _any_errors, "items": _item_errors}
