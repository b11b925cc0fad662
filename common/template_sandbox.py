"""The Jinja environment that chat templates are written for, without a way out of it."""

import json
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_REPEAT = 1 << 16  # elements that `*` may make of a string or a list
MAX_POWER = 64


class Refusal(Exception):  # noqa: N818  not an error of the template: it says what is wrong
    """What the template itself said with `raise_exception`."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Attributes that lead out are barred by the base class, `range` is bounded by it."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and max(abs(left), abs(right)) > MAX_POWER:
            raise SecurityError("a power of large numbers")
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        counts = [side for side in (left, right) if isinstance(side, int)]
        if operator == "*" and sizes and counts and sizes[0] * counts[0] > MAX_REPEAT:
            raise SecurityError("a string or list that is repeated too often")
        return super().call_binop(context, operator, left, right)


class Generation(Extension):
    """`{% generation %}` marks what a model is trained on; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise Refusal(message)


def _strftime_now(layout: str) -> str:
    return datetime.now(tz=UTC).astimezone().strftime(layout)
