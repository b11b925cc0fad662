"""How messages lie in hashes, for both buses alike; `common/entries.py` is about streams."""

import orjson

from common import codec
from common.bus import Fields, Lease, Share, Status
from common.fields import count_field, parse_integer, text_field, utf8
from common.garbage import report
from common.json_values import DecodeError, count, load, mapping, number
from common.messages import GatewayId, RequestId, WorkerHello, WorkerId


def read_workers(fields: Fields) -> dict[WorkerId, WorkerHello]:
    workers = {}
    for worker, value in fields.items():
        try:
            workers[WorkerId(utf8(worker))] = codec.decode_hello(value)
        except DecodeError as error:
            report("workers", repr(worker), [value], error)
    return workers


def gateway_value(beat: int) -> bytes:
    return orjson.dumps({"beat": beat})


def read_gateways(fields: Fields) -> dict[GatewayId, int]:
    beats = {}
    for gateway, value in fields.items():
        try:
            beat = count(mapping(load(value)).get("beat"))
            beats[GatewayId(utf8(gateway))] = beat
        except DecodeError as error:
            report("gateways", repr(gateway), [value], error)
    return beats


SECRET_FIELD = "ids"  # what the secret is for


def read_owners(fields: Fields) -> dict[RequestId, WorkerId]:
    return {
        RequestId(request.decode(errors="replace")): WorkerId(worker.decode(errors="replace"))
        for request, worker in fields.items()
    }


def read_suspects(fields: Fields) -> dict[RequestId, int]:
    suspects = {}
    for request, value in fields.items():
        try:
            suspects[RequestId(utf8(request))] = parse_integer(value)
        except DecodeError as error:
            report("suspects", repr(request), [value], error)
    return suspects


def share_value(share: Share) -> bytes:
    return orjson.dumps(share)


def read_shares(fields: Fields) -> dict[str, Share]:
    shares = {}
    for tenant, value in fields.items():
        try:
            share = mapping(load(value))
            shares[utf8(tenant)] = Share(number(share.get("served")), number(share.get("weight")))
        except DecodeError as error:
            report("shares", repr(tenant), [value], error)
    return shares


def read_lease(fields: Fields) -> Lease:
    """A missing lease reads as one that nobody has held."""
    if not fields:
        return Lease()
    return Lease(
        text_field(fields, b"holder"), count_field(fields, b"epoch"), count_field(fields, b"beat")
    )


def lease_fields(lease: Lease) -> dict[bytes, bytes]:
    return {
        b"holder": lease.holder.encode(),
        b"epoch": b"%d" % lease.epoch,
        b"beat": b"%d" % lease.beat,
    }


STATUS_FIELD = "summary"


def status_value(status: Status) -> bytes:
    return orjson.dumps(status)


def read_status(value: bytes | None) -> Status:
    """What is missing or unreadable reads as a scheduler that never led."""
    if value is None:
        return Status()
    try:
        fields = mapping(load(value))
        counts = {name: count(fields[name]) for name in _STATUS_COUNTS if name in fields}
        rates = {name: number(fields[name]) for name in _STATUS_RATES if name in fields}
    except DecodeError as error:
        report("status", STATUS_FIELD, [value], error)
        return Status()
    return Status(**counts, **rates)  # type: ignore[arg-type]  # mypy sees one type for all


_STATUS_COUNTS = (
    *("epoch", "beat", "steps"),
    *("num_waiting", "num_held", "num_running", "waiting_tokens"),
    *("num_preempted", "cached_tokens"),
)
_STATUS_RATES = ("tokens_per_second", "wait_seconds", "cost_error")
