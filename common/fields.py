"""Fields of entries and hashes, checked as they are read; `DecodeError` for what is malformed."""

import math

from common.bus import Fields
from common.json_values import DecodeError


def required(fields: Fields, name: bytes) -> bytes:
    if name not in fields:
        raise DecodeError(f"field {name.decode()} is missing")
    return fields[name]


def text_field(fields: Fields, name: bytes) -> str:
    return utf8(required(fields, name))


def utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DecodeError(f"no UTF-8: {value!r:.40}") from None


def count_field(fields: Fields, name: bytes) -> int:
    number = integer_field(fields, name)
    if number < 0:
        raise DecodeError(f"field {name.decode()} counts from 0: {number}")
    return number


def integer_field(fields: Fields, name: bytes) -> int:
    return parse_integer(required(fields, name))


def positive_field(fields: Fields, name: bytes) -> float:
    value = required(fields, name)
    try:
        number = float(value[:40])
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise DecodeError(f"field {name.decode()} is a positive number: {value!r:.40}")
    return number


def parse_integer(value: bytes) -> int:
    if len(value) > 20:
        raise DecodeError(f"integer expected: {value!r:.40}")
    try:
        return int(value)
    except ValueError:
        raise DecodeError(f"integer expected: {value!r:.40}") from None
