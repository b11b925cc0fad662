"""A model's own chat template, in a sandbox: messages to the token ids of a prompt.

Special tokens in what a user wrote stay text. Each of their occurrences in a user's string is
broken by a mark before rendering; the mark is taken out when the template's own special tokens
have been found. A template could still join pieces of users' strings to a special token: so it is
rendered once more with a mark behind every character that could begin one, and where the two
renderings differ in their special tokens the second is used.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from jinja2 import Template
from jinja2 import TemplateError as JinjaError

from common.model_files import ModelFiles, ModelFilesError, read_json
from common.template_sandbox import Refusal, Sandbox
from common.tokenizer import Tokenizer, replace

SPACIOUS = 1 << 20  # characters that a template may write beside what it was given
MARKS = range(0xE000, 0xF900)  # private use
SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
Messages = Sequence[Mapping[str, str]]
Marking = Callable[[str], str]


class TemplateError(Exception):
    """The messages cannot be rendered; the text is for the client."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ChatTemplate:
    def __init__(self, source: str | None, variables: Mapping[str, str]) -> None:
        """`source`: None if the model has no template. `variables`: as `bos_token`, its text."""
        self._variables = dict(variables)
        self._template: Template | None = None
        if source is not None:
            try:
                self._template = Sandbox().from_string(source)
            except (JinjaError, RecursionError) as error:
                raise ModelFilesError(f"the model's chat template is faulty ({error})") from None

    @classmethod
    def load(cls, files: ModelFiles) -> Self:
        """The model's template, or one that refuses all messages if it has none."""
        if files.is_gguf:
            return cls(files.config.get("tokenizer.chat_template"), _gguf_variables(files.config))
        config = read_json(files.path / "tokenizer_config.json")
        return cls(_hub_source(files, config), _hub_variables(config))

    def encode(
        self, messages: Messages, tokenizer: Tokenizer, *, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of the conversation, up to where the assistant speaks.

        Each message's `role` must be one of a known few, it is taken as the template's own text.
        TemplateError if the template refuses; TooLongError above `max_tokens`.
        """
        tokenizer.check_length(sum(len(one["content"]) for one in messages), max_tokens)
        mark = _unused(messages)
        special = tokenizer.special_tokens
        text = self.render(_marked(messages, lambda value: _break(value, special, mark)))
        beginnings = {token[0] for token in special}
        if any(_holds(value, beginnings) for message in messages for value in message.values()):
            safe = self.render(_marked(messages, lambda value: _break(value, beginnings, mark)))
            if _found(tokenizer, text) != _found(tokenizer, safe):
                text = safe
        return tokenizer.encode_marked(text, mark, max_tokens=max_tokens)

    def render(self, messages: Messages) -> str:
        if self._template is None:
            raise TemplateError(
                "This model has no chat template: use /v1/completions.", "no_chat_template"
            )
        room = SPACIOUS + 4 * sum(len(value) for one in messages for value in one.values())
        pieces: list[str] = []
        try:
            for piece in self._template.generate(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._variables,
            ):
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    raise _unrenderable()
        except Refusal as refusal:
            raise TemplateError(
                f"The model's chat template refuses these messages: {refusal}", "invalid_messages"
            ) from None
        except (JinjaError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise _unrenderable() from error
        except (AttributeError, RecursionError, MemoryError) as error:
            raise _unrenderable() from error
        return "".join(pieces)


def _unrenderable() -> TemplateError:
    return TemplateError(
        "The model's chat template cannot render these messages.", "invalid_messages"
    )


def _marked(messages: Messages, marking: Marking) -> list[dict[str, str]]:
    return [
        {key: value if key == "role" else marking(value) for key, value in message.items()}
        for message in messages
    ]


def _unused(messages: Messages) -> str:
    """A character that no message contains; these are no characters of any language."""
    values = [value for message in messages for value in message.values()]
    return next(char for char in map(chr, MARKS) if not any(char in value for value in values))


def _break(value: str, parts: Mapping[str, int] | set[str], mark: str) -> str:
    """Put the mark behind the first character of every occurrence of every part."""
    for part in parts:
        if part in value:
            value = replace(value, part, part[0] + mark + part[1:])
    return value


def _holds(value: str, parts: set[str]) -> bool:
    return any(part in value for part in parts)


def _found(tokenizer: Tokenizer, text: str) -> list[str]:
    return [special for _, special in tokenizer.find_special(text)]


def _gguf_variables(header: Mapping[str, Any]) -> dict[str, str]:
    tokens = header["tokenizer.ggml.tokens"]
    ids = {
        "bos_token": header.get("tokenizer.ggml.bos_token_id"),
        "eos_token": header.get("tokenizer.ggml.eos_token_id"),
        "unk_token": header.get("tokenizer.ggml.unknown_token_id"),
        "pad_token": header.get("tokenizer.ggml.padding_token_id"),
    }
    return {
        name: tokens[token]
        for name, token in ids.items()
        if token is not None and 0 <= token < len(tokens)
    }


def _hub_source(files: ModelFiles, config: Mapping[str, Any]) -> str | None:
    path = files.path / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _hub_variables(config: Mapping[str, Any]) -> dict[str, str]:
    variables = {}
    for name in SPECIALS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            variables[name] = text
    return variables
