"""OpenAI's API: the body of a request to a call, a call and its prompts to a `Submit`; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.messages import SEED_BITS, Ending, GatewayId, Sampling, SubmissionId, Submit
from gateway.errors import BadRequestError
from gateway.frames import Head
from gateway.messages_body import Message, parse_messages
from gateway.parameters import (
    INT64,
    Body,
    checked_number,
    checked_tokens,
    parse_object,
    wrong_type,
)

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
    priority: int
    user: str | None


@dataclass(frozen=True, slots=True)
class ChatCall:
    messages: tuple[Message, ...]
    params: Params


@dataclass(frozen=True, slots=True)
class CompletionCall:
    prompts: tuple[str | tuple[int, ...], ...]  # text, or token ids
    params: Params


Call = ChatCall | CompletionCall


def parse_chat(body: bytes, limits: ApiLimits) -> ChatCall:
    fields = parse_object(body)
    messages = parse_messages(fields.take("messages"))
    fields.refuse(OFF_CHAT)
    max_tokens = _max_tokens(fields, "max_completion_tokens", "max_tokens")
    params = _params(fields, limits, max_tokens)
    _check_choices(params.n, 1, limits)
    return ChatCall(messages, params)


def parse_completion(body: bytes, limits: ApiLimits) -> CompletionCall:
    fields = parse_object(body)
    prompts = _prompts(fields.take("prompt"), limits)
    fields.refuse(OFF_COMPLETION)
    best_of = fields.integer("best_of", None, 1, limits.max_choices)
    params = _params(fields, limits, _max_tokens(fields, "max_tokens"))
    if best_of not in {None, params.n}:
        raise BadRequestError(
            "'best_of' is not supported by this server, unless it equals 'n'.",
            "best_of",
            "unsupported_parameter",
        )
    _check_choices(params.n, len(prompts), limits)
    return CompletionCall(prompts, params)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the gateway knows of a request beside its body."""

    submission_id: SubmissionId
    gateway: GatewayId
    created: int  # seconds since the epoch
    seed: int  # used where the client gave none
    tenant: str = "anonymous"
    digest: str = ""  # of the body
    deadline_seconds: float | None = None
    resumable: bool = False


def submit_of(
    call: Call,
    prompts: Sequence[Sequence[int]],
    arrival: Arrival,
    *,
    end_tokens: Sequence[int],
    max_request_tokens: int,
) -> Submit:
    """The whole request as one message; BadRequestError if it does not fit.

    `prompts`: the call's, as token ids. `end_tokens`: the model's. `max_request_tokens`: prompt
    and answer of one choice, by the model and by the workers' cache.
    """
    params = call.params
    max_tokens = _fit(call, prompts, max_request_tokens)
    seed = arrival.seed if params.seed is None else params.seed
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(end_tokens))
    return Submit(
        submission_id=arrival.submission_id,
        prompts=tuple(map(tuple, prompts)),
        n=params.n,
        sampling=Sampling(seed=seed & ((1 << SEED_BITS) - 1), **params.sampling),
        ending=Ending(max_tokens, params.min_tokens, tuple(sorted(ends))),
        gateway=arrival.gateway,
        tenant=arrival.tenant,
        priority=params.priority,
        deadline_seconds=arrival.deadline_seconds,
        resumable=arrival.resumable,
        digest=arrival.digest,
        frame=_head(call, prompts, arrival.created).to_frame(),
    )


def _head(call: Call, prompts: Sequence[Sequence[int]], created: int) -> Head:
    params = call.params
    return Head(
        chat=isinstance(call, ChatCall),
        model=params.model,
        created=created,
        num_choices=len(prompts) * params.n,
        n=params.n,
        num_prompt_tokens=sum(map(len, prompts)),
        stream=params.stream,
        include_usage=params.include_usage,
        stop=params.stop,
        min_tokens=params.min_tokens,
        hidden=params.stop_token_ids,
    )


def _fit(call: Call, prompts: Sequence[Sequence[int]], max_request_tokens: int) -> int:
    """The output tokens of each choice: what was asked for, or what the longest prompt leaves."""
    params = call.params
    name = "messages" if isinstance(call, ChatCall) else "prompt"
    if not all(prompts):
        raise BadRequestError(
            f"Invalid '{name}': the prompt is empty; it needs at least one token.",
            name,
            "empty_prompt",
        )
    longest = max(map(len, prompts))
    room = max_request_tokens - longest
    wanted = params.max_tokens or max(1, params.min_tokens)
    if wanted > room:
        raise too_long(call, longest, wanted, max_request_tokens)
    return params.max_tokens or room


def too_long(
    call: Call, num_prompt: int, num_output: int, max_request_tokens: int
) -> BadRequestError:
    """What to say where the longest prompt and the answer asked for do not fit."""
    name = "messages" if isinstance(call, ChatCall) else "prompt"
    return BadRequestError(
        f"This model's maximum context length is {max_request_tokens} tokens. However, you "
        f"requested {num_prompt + num_output} tokens ({num_prompt} in the {name}, {num_output} in "
        f"the completion). Please reduce the length of the {name} or completion.",
        name,
        "context_length_exceeded",
    )


def _params(fields: Body, limits: ApiLimits, max_tokens: int | None) -> Params:
    """Take all that both routes understand; refuse what is left."""
    fields.refuse(OFF_BOTH)
    _check_model(fields.string("model"), limits.model)
    stream = fields.boolean("stream")
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
        include_usage=_include_usage(fields, stream),
        priority=fields.integer("priority", 0, -(1 << 31), (1 << 31) - 1),
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


def _check_choices(n: int, num_prompts: int, limits: ApiLimits) -> None:
    if n * num_prompts > limits.max_choices:
        raise BadRequestError(
            f"Invalid 'n': at most {limits.max_choices} choices of one request, counting all its "
            f"prompts, but got {n * num_prompts}.",
            "n",
            "integer_above_max_value",
        )


def _max_tokens(fields: Body, *names: str) -> int | None:
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


def _include_usage(fields: Body, stream: bool) -> bool:
    table = fields.take("stream_options")
    if table is None:
        return False
    if not isinstance(table, dict):
        raise wrong_type("stream_options", "an object", table)
    if not stream:
        raise BadRequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            "stream_options",
            "invalid_value",
        )
    options = Body(table, "stream_options.")
    include_usage = options.boolean("include_usage")
    options.refuse({"include_obfuscation": (False,), "continuous_usage_stats": (False,)})
    options.close()
    return include_usage


def _prompts(value: Any, limits: ApiLimits) -> tuple[str | tuple[int, ...], ...]:
    """A string, a list of strings, a list of token ids, or a list of such lists."""
    if isinstance(value, str):
        return (value,)
    if value is None:
        raise BadRequestError(
            "Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter"
        )
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or an array", value)
    if not value:
        raise BadRequestError("Invalid 'prompt': it is empty.", "prompt", "empty_array")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) for item in value):
        return tuple(checked_tokens(item, "prompt", limits.vocab_size) for item in value)
    return (checked_tokens(value, "prompt", limits.vocab_size),)


def _check_length(count: int, name: str, maximum: int) -> None:
    if count > maximum:
        raise BadRequestError(
            f"Invalid '{name}': array too long. Expected at most {maximum} elements, "
            f"but got {count}.",
            name,
            "array_above_max_length",
        )
