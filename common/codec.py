"""Messages to JSON and back: explicit, versioned, and `DecodeError` for all that is malformed.

Rows that every step repeats are small arrays, everything else is an object; what stands at its
default is left out. A reader ignores fields that it does not know: a change that an older reader
must not ignore raises `VERSION`. `common/entries.py` says how messages lie in streams.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import orjson

from common.json_values import (
    DecodeError,
    array,
    boolean,
    count,
    finish_reason,
    integer,
    integers,
    load,
    mapping,
    number,
    text,
)
from common.messages import (
    VERSION,
    BlockId,
    Chunk,
    Ended,
    Ending,
    GatewayId,
    HostBlockId,
    JournalHead,
    RequestId,
    RowStart,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
    Swap,
    TokenBatch,
    WorkerHello,
    WorkerId,
)

T = TypeVar("T")


# --- Gateway to scheduler ---------------------------------------------------------------------


def encode_submit(submit: Submit) -> bytes:
    return _dump(
        {
            "id": submit.submission_id,
            "prompts": submit.prompts,
            "n": submit.n,
            "sampling": _sampling(submit.sampling),
            "ending": _ending(submit.ending),
            "gateway": submit.gateway,
            "tenant": submit.tenant,
            "priority": submit.priority,
            "deadline_seconds": submit.deadline_seconds,
            "ttft_target_seconds": submit.ttft_target_seconds,
            "resumable": submit.resumable,
            "digest": submit.digest,
            "frame": submit.frame,
        }
    )


def decode_submit(data: bytes) -> Submit:
    return _decode(data, _read_submit)


def _read_submit(value: dict[str, Any]) -> Submit:
    return Submit(
        submission_id=SubmissionId(text(value["id"])),
        prompts=tuple(integers(prompt) for prompt in array(value["prompts"])),
        n=count(value["n"]),
        sampling=_read_sampling(value["sampling"]),
        ending=_read_ending(value["ending"]),
        gateway=GatewayId(text(value["gateway"])),
        tenant=text(value["tenant"]),
        priority=integer(value["priority"]),
        deadline_seconds=_optional_number(value["deadline_seconds"]),
        ttft_target_seconds=_optional_number(value["ttft_target_seconds"]),
        resumable=boolean(value["resumable"]),
        digest=text(value["digest"]),
        frame=mapping(value["frame"]),
    )


def _optional_number(value: Any) -> float | None:
    return None if value is None else number(value)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": sampling.logit_bias,
    }


def _read_sampling(value: Any) -> Sampling:
    fields = mapping(value)
    return Sampling(
        seed=count(fields["seed"]),
        temperature=number(fields["temperature"]),
        top_p=number(fields["top_p"]),
        top_k=count(fields["top_k"]),
        min_p=number(fields["min_p"]),
        presence_penalty=number(fields["presence_penalty"]),
        frequency_penalty=number(fields["frequency_penalty"]),
        repetition_penalty=number(fields["repetition_penalty"]),
        logit_bias=tuple(
            (count(token), number(bias)) for token, bias in array(fields["logit_bias"])
        ),
    )


def _ending(ending: Ending) -> dict[str, Any]:
    return {
        "max_tokens": ending.max_tokens,
        "min_tokens": ending.min_tokens,
        "end_tokens": ending.end_tokens,
    }


def _read_ending(value: Any) -> Ending:
    fields = mapping(value)
    return Ending(
        max_tokens=count(fields["max_tokens"]),
        min_tokens=count(fields["min_tokens"]),
        end_tokens=integers(fields["end_tokens"]),
    )


# --- Scheduler to worker ----------------------------------------------------------------------


def encode_plan(plan: StepPlan) -> bytes:
    message: dict[str, Any] = {"step": plan.step}
    if plan.released:
        message["released"] = plan.released
    if plan.admitted:
        message["admitted"] = [_row_start(row) for row in plan.admitted]
    if plan.gateways:
        message["gateways"] = plan.gateways
    if plan.chunks:
        message["chunks"] = [
            (c.request_id, c.start, c.count, c.new_blocks, 1 if c.samples else 0)
            for c in plan.chunks
        ]
    if plan.swap_out:
        message["swap_out"] = plan.swap_out
    if plan.swap_in:
        message["swap_in"] = plan.swap_in
    return _dump(message)


def decode_plan(data: bytes) -> StepPlan:
    return _decode(data, _read_plan)


def _read_plan(value: dict[str, Any]) -> StepPlan:
    return StepPlan(
        step=count(value["step"]),
        released=tuple(RequestId(text(request)) for request in array(value.get("released", []))),
        admitted=tuple(_read_row_start(row) for row in array(value.get("admitted", []))),
        chunks=_read_chunks(value.get("chunks", [])),
        gateways=tuple(
            (RequestId(text(request)), _gateway_ids(gateways))
            for request, gateways in array(value.get("gateways", []))
        ),
        swap_out=_read_swaps(value.get("swap_out", [])),
        swap_in=_read_swaps(value.get("swap_in", [])),
    )


def _read_swaps(value: Any) -> tuple[Swap, ...]:
    return tuple(
        (BlockId(count(block)), HostBlockId(count(host_block)))
        for block, host_block in array(value)
    )


def _read_chunks(value: Any) -> tuple[Chunk, ...]:
    """Written out, without a call a field, as `_read_sampled` is."""
    chunks = []
    for row in array(value):
        if type(row) is not list or len(row) != 5:
            raise _no_chunk(row)
        request, start, num_tokens, blocks, samples = row
        if type(request) is not str or type(start) is not int or type(num_tokens) is not int:
            raise _no_chunk(row)
        if start < 0 or num_tokens < 0 or samples not in (0, 1):
            raise _no_chunk(row)
        new_blocks = cast("tuple[BlockId, ...]", () if blocks == [] else integers(blocks))
        chunks.append(Chunk(RequestId(request), start, num_tokens, new_blocks, samples == 1))
    return tuple(chunks)


def _no_chunk(row: Any) -> DecodeError:
    return DecodeError(f"[request, start, count, [block], samples] expected: {row!r:.80}")


def _row_start(row: RowStart) -> dict[str, Any]:
    return {
        "request": row.request_id,
        "num_prompt": row.num_prompt,
        "tokens": row.tokens,
        "sampling": _sampling(row.sampling),
        "ending": _ending(row.ending),
        "gateways": row.gateways,
        "num_computed": row.num_computed,
    }


def _read_row_start(value: Any) -> RowStart:
    fields = mapping(value)
    return RowStart(
        request_id=RequestId(text(fields["request"])),
        tokens=integers(fields["tokens"]),
        num_prompt=count(fields["num_prompt"]),
        sampling=_read_sampling(fields["sampling"]),
        ending=_read_ending(fields["ending"]),
        gateways=_gateway_ids(fields["gateways"]),
        num_computed=count(fields["num_computed"]),
    )


def _gateway_ids(value: Any) -> tuple[GatewayId, ...]:
    return tuple(GatewayId(text(gateway)) for gateway in array(value))


# --- Worker to scheduler ----------------------------------------------------------------------


def encode_result(result: StepResult) -> bytes:
    message: dict[str, Any] = {"step": result.step, "seconds": result.seconds}
    if result.errors:
        message["errors"] = result.errors
    message["sampled"] = _sampled(result.sampled)
    return _dump(message)


def decode_result(data: bytes) -> StepResult:
    return _decode(data, _read_result)


def _read_result(value: dict[str, Any]) -> StepResult:
    errors = mapping(value.get("errors", {}))
    return StepResult(
        step=count(value["step"]),
        sampled=_read_sampled(value["sampled"]),
        seconds=number(value["seconds"]),
        errors={RequestId(request): text(reason) for request, reason in errors.items()},
    )


def _sampled(rows: tuple[Sampled, ...]) -> list[tuple[Any, ...]]:
    return [
        (row.request_id, row.position, row.token)
        if row.finish is None
        else (row.request_id, row.position, row.token, row.finish.value)
        for row in rows
    ]


def _read_sampled(value: Any) -> tuple[Sampled, ...]:
    """Written out, without a call a field: this runs for every row of every step."""
    rows = []
    for row in array(value):
        if type(row) is not list or not 3 <= len(row) <= 4:
            raise _no_sampled(row)
        request, position, token = row if len(row) == 3 else row[:3]
        if type(request) is not str or type(position) is not int or type(token) is not int:
            raise _no_sampled(row)
        if position < 0 or token < 0:
            raise _no_sampled(row)
        finish = None if len(row) == 3 else finish_reason(row[3])
        rows.append(Sampled(RequestId(request), position, token, finish))
    return tuple(rows)


def _no_sampled(row: Any) -> DecodeError:
    return DecodeError(f"[request, position, token, finish?] expected: {row!r:.80}")


def encode_hello(hello: WorkerHello) -> bytes:
    return _dump(
        {
            "worker": hello.worker_id,
            "model": hello.model,
            "device": hello.device,
            "num_blocks": hello.num_blocks,
            "block_size": hello.block_size,
            "max_request_tokens": hello.max_request_tokens,
            "max_step_tokens": hello.max_step_tokens,
            "max_rows": hello.max_rows,
            "num_host_blocks": hello.num_host_blocks,
            "beat": hello.beat,
            "step": hello.step,
            "step_beats": hello.step_beats,
            "leaving": hello.leaving,
            "failed": hello.failed,
        }
    )


def decode_hello(data: bytes) -> WorkerHello:
    return _decode(data, _read_hello)


def _read_hello(value: dict[str, Any]) -> WorkerHello:
    return WorkerHello(
        worker_id=WorkerId(text(value["worker"])),
        model=text(value["model"]),
        device=text(value["device"]),
        num_blocks=count(value["num_blocks"]),
        block_size=count(value["block_size"]),
        max_request_tokens=count(value["max_request_tokens"]),
        max_step_tokens=count(value["max_step_tokens"]),
        max_rows=count(value["max_rows"]),
        num_host_blocks=count(value["num_host_blocks"]),
        beat=count(value["beat"]),
        step=count(value["step"]),
        step_beats=count(value["step_beats"]),
        leaving=boolean(value["leaving"]),
        failed=text(value["failed"]),
    )


# --- To gateways ------------------------------------------------------------------------------


def encode_token_batch(batch: TokenBatch) -> bytes:
    return _dump({"sampled": _sampled(batch.sampled)})


def encode_ended(ended: Ended) -> bytes:
    return _dump(
        {
            "ended": ended.request_id,
            "kept": ended.kept,
            "reason": ended.reason.value,
            "error": ended.error,
            "cached_tokens": ended.cached_tokens,
        }
    )


def decode_notice(data: bytes) -> TokenBatch | Ended:
    return _decode(data, _read_notice)


def _read_notice(value: dict[str, Any]) -> TokenBatch | Ended:
    if "ended" not in value:
        return TokenBatch(_read_sampled(value["sampled"]))
    return Ended(
        request_id=RequestId(text(value["ended"])),
        kept=count(value["kept"]),
        reason=finish_reason(value["reason"]),
        error=text(value["error"]),
        cached_tokens=count(value["cached_tokens"]),
    )


# --- What stands in Redis ---------------------------------------------------------------------


def encode_head(head: JournalHead) -> bytes:
    return _dump(
        {
            "request": head.request_id,
            "entry": head.entry,
            "num_prompt": head.num_prompt,
            "tenant": head.tenant,
            "digest": head.digest,
            "frame": head.frame,
        }
    )


def decode_head(data: bytes) -> JournalHead:
    return _decode(data, _read_head)


def _read_head(value: dict[str, Any]) -> JournalHead:
    return JournalHead(
        request_id=RequestId(text(value["request"])),
        entry=text(value["entry"]),
        num_prompt=count(value["num_prompt"]),
        tenant=text(value["tenant"]),
        digest=text(value["digest"]),
        frame=mapping(value["frame"]),
    )


def encode_tokens(tokens: tuple[int, ...]) -> bytes:
    """A plain list: its version is that of the journal's head."""
    return orjson.dumps(tokens)


def decode_tokens(data: bytes) -> tuple[int, ...]:
    return integers(load(data))


# --- Envelope ----------------------------------------------------------------------------------


def _dump(message: dict[str, Any]) -> bytes:
    return orjson.dumps({"v": VERSION, **message})


def _decode(data: bytes, read: Callable[[dict[str, Any]], T]) -> T:
    value = mapping(load(data))
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        raise DecodeError(f"version {version!r:.20} is not spoken here, {VERSION} is")
    try:
        return read(value)
    except KeyError as error:
        raise DecodeError(f"{error} is missing") from None
    except (ValueError, TypeError) as error:  # a row of another shape or length
        raise DecodeError(f"a row is malformed: {error}") from None
