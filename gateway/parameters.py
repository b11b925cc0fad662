"""The parameters that both routes understand, and those that none of them does; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.body import INT64, Body, checked_number, checked_tokens, wrong_type
from gateway.errors import BadRequestError

# What is known but not supported -> the values that mean that it is off.
OFF_BOTH: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "metadata": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "service_tier": ("auto", "default"),
}
OFF_CHAT: dict[str, tuple[Any, ...]] = {
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "store": (False,),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
    "moderation": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
}
OFF_COMPLETION: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "echo": (False,),
    "response_format": ({"type": "text"},),
}
OFF_STREAM_OPTIONS: dict[str, tuple[Any, ...]] = {"include_obfuscation": (False,)}
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")

MIN_TARGET_MS = 0.001
MAX_TARGET_MS = 1e9


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """What a request may ask for."""

    model: str  # the name served
    vocab_size: int
    max_choices: int = 128  # n times prompts
    max_stop: int = 16
    max_stop_chars: int = 1024  # of one stop string
    max_stop_token_ids: int = 128
    max_logit_bias: int = 1024


@dataclass(frozen=True, slots=True)
class Params:
    """What both routes understand, checked."""

    model: str
    n: int
    max_tokens: int | None  # None: what the context leaves
    min_tokens: int
    sampling: Mapping[str, Any]  # of `Sampling`, all but the seed
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool  # in every chunk
    priority: int
    ttft_target_seconds: float | None  # to the first token, under policy=deadline
    user: str | None


def parse_params(fields: Body, limits: ApiLimits, max_tokens: int | None) -> Params:
    """Take all that both routes understand; refuse what is left."""
    fields.refuse(OFF_BOTH)
    _check_model(fields.string("model"), limits.model)
    stream = fields.boolean("stream")
    include_usage, continuous_usage = _usage(fields, stream)
    params = Params(
        model=limits.model,
        n=fields.integer("n", 1, 1, INT64),
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0, 0, INT64),
        sampling=_sampling(fields, limits),
        seed=fields.integer("seed", None, -INT64, INT64 - 1),
        stop=_stop(fields.take("stop"), limits),
        stop_token_ids=_stop_token_ids(fields.take("stop_token_ids"), limits),
        ignore_eos=fields.boolean("ignore_eos"),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        priority=fields.integer("priority", 0, -(1 << 31), (1 << 31) - 1),
        ttft_target_seconds=_ttft_target(fields.take("ttft_target_ms")),
        user=fields.string("user"),
    )
    fields.close()
    if max_tokens is not None and params.min_tokens > max_tokens:
        raise BadRequestError(
            f"Invalid 'min_tokens': {params.min_tokens} is more than max_tokens ({max_tokens}).",
            "min_tokens",
            "invalid_value",
        )
    return params


def _ttft_target(value: Any) -> float | None:
    if value is None:
        return None
    return checked_number(value, "ttft_target_ms", MIN_TARGET_MS, MAX_TARGET_MS) / 1000


def _check_model(model: str | None, served: str) -> None:
    if not model:
        raise BadRequestError("you must provide a model parameter", "model", "missing_parameter")
    if model != served:
        raise BadRequestError(
            f"The model '{model}' does not exist or you do not have access to it.",
            "model",
            "model_not_found",
            status=404,
        )


def parse_max_tokens(fields: Body, *names: str) -> int | None:
    values = {name: fields.integer(name, None, 1, INT64) for name in names}
    given = [name for name in names if values[name] is not None]
    if len(given) > 1:
        raise BadRequestError(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            "max_tokens",
            "invalid_parameter_combination",
        )
    return values[given[0]] if given else None


def _sampling(fields: Body, limits: ApiLimits) -> dict[str, Any]:
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    top_k = max(0, fields.integer("top_k", 0, -1, INT64))
    if top_p == 0.0:  # nothing but the likeliest token
        top_p, top_k = 1.0, 1
    return {
        "temperature": fields.number("temperature", 1.0, 0.0, 2.0),
        "top_p": top_p,
        "top_k": min(top_k, limits.vocab_size),
        "min_p": fields.number("min_p", 0.0, 0.0, 1.0),
        "presence_penalty": fields.number("presence_penalty", 0.0, -2.0, 2.0),
        "frequency_penalty": fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        "repetition_penalty": fields.number("repetition_penalty", 1.0, 0.01, 100.0),
        "logit_bias": _logit_bias(fields.table("logit_bias"), limits),
    }


def _logit_bias(table: Mapping[str, Any], limits: ApiLimits) -> tuple[tuple[int, float], ...]:
    _check_length(len(table), "logit_bias", limits.max_logit_bias)
    biases = {}
    for key, value in table.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise BadRequestError(
                f"Invalid key in 'logit_bias': {key[:32]!r}. Keys are token ids.",
                "logit_bias",
                "invalid_value",
            )
        (token,) = checked_tokens([int(key)], "logit_bias", limits.vocab_size)
        biases[token] = checked_number(value, f"logit_bias.{key}", -100.0, 100.0)
    return tuple(biases.items())


def _stop(value: Any, limits: ApiLimits) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    _check_length(len(texts), "stop", limits.max_stop)
    for text in texts:
        if not isinstance(text, str):
            raise wrong_type("stop", "a string or an array of strings", text)
        if not 1 <= len(text) <= limits.max_stop_chars:
            raise BadRequestError(
                f"Invalid 'stop': a stop string has 1 to {limits.max_stop_chars} characters, "
                f"but got {len(text)}.",
                "stop",
                "invalid_value",
            )
    return tuple(dict.fromkeys(texts))


def _stop_token_ids(value: Any, limits: ApiLimits) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("stop_token_ids", "an array of token ids", value)
    _check_length(len(value), "stop_token_ids", limits.max_stop_token_ids)
    return tuple(sorted(set(checked_tokens(value, "stop_token_ids", limits.vocab_size))))


def _usage(fields: Body, stream: bool) -> tuple[bool, bool]:
    """Whether a last chunk says it, and whether every other one does."""
    table = fields.take("stream_options")
    if table is None:
        return False, False
    if not isinstance(table, dict):
        raise wrong_type("stream_options", "an object", table)
    if not stream:
        raise BadRequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            "stream_options",
            "invalid_value",
        )
    options = Body(table, "stream_options.")
    include_usage, continuous_usage = map(options.boolean, STREAM_OPTIONS)
    options.refuse(OFF_STREAM_OPTIONS)
    options.close()
    return include_usage, continuous_usage


def _check_length(count: int, name: str, maximum: int) -> None:
    if count > maximum:
        raise BadRequestError(
            f"Invalid '{name}': array too long. Expected at most {maximum} elements, "
            f"but got {count}.",
            name,
            "array_above_max_length",
        )
