"""OpenAI's API: the body of a request to a call, a call and its prompts to a `Submit`; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.messages import SEED_BITS, Ending, GatewayId, Sampling, SubmissionId, Submit
from gateway.body import checked_tokens, parse_object, wrong_type
from gateway.chat_messages import Message, parse_messages
from gateway.errors import BadRequestError
from gateway.head import Head
from gateway.parameters import (
    OFF_CHAT,
    OFF_COMPLETION,
    ApiLimits,
    Params,
    parse_max_tokens,
    parse_params,
)


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
    max_tokens = parse_max_tokens(fields, "max_completion_tokens", "max_tokens")
    params = parse_params(fields, limits, max_tokens)
    _check_choices(params.n, 1, limits)
    return ChatCall(messages, params)


def parse_completion(body: bytes, limits: ApiLimits) -> CompletionCall:
    fields = parse_object(body)
    prompts = _prompts(fields.take("prompt"), limits)
    fields.refuse(OFF_COMPLETION)
    best_of = fields.integer("best_of", None, 1, limits.max_choices)
    params = parse_params(fields, limits, parse_max_tokens(fields, "max_tokens"))
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
        ttft_target_seconds=params.ttft_target_seconds,
        resumable=arrival.resumable,
        digest=arrival.digest,
        frame=_head(call, prompts, arrival).to_frame(),
    )


def _head(call: Call, prompts: Sequence[Sequence[int]], arrival: Arrival) -> Head:
    params = call.params
    num_choices = len(prompts) * params.n
    return Head(
        chat=isinstance(call, ChatCall),
        model=params.model,
        created=arrival.created,
        num_choices=num_choices,
        n=params.n,
        num_prompt_tokens=sum(map(len, prompts)),
        stream=params.stream,
        include_usage=params.include_usage,
        usage_prompts=tuple(map(len, prompts)) if params.continuous_usage else (),
        stop=params.stop,
        min_tokens=params.min_tokens,
        hidden=params.stop_token_ids,
        in_turn=arrival.resumable and params.stream and num_choices > 1,
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


def _check_choices(n: int, num_prompts: int, limits: ApiLimits) -> None:
    if n * num_prompts > limits.max_choices:
        raise BadRequestError(
            f"Invalid 'n': at most {limits.max_choices} choices of one request, counting all its "
            f"prompts, but got {n * num_prompts}.",
            "n",
            "integer_above_max_value",
        )


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
