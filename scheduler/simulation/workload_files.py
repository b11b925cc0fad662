"""Workloads from files, as arrivals; `common/traces.py` knows their formats."""

from common.traces import TraceError, TraceRequest, read_trace
from scheduler.simulation.errors import InputError
from scheduler.simulation.workload import Arrival


def read_workload(path: str) -> list[Arrival]:
    """By time of arrival, the first at its own time or at 0; raises InputError, naming the line."""
    try:
        return [_arrival(request) for request in read_trace(path)]
    except TraceError as error:
        raise InputError(str(error)) from None


def _arrival(request: TraceRequest) -> Arrival:
    return Arrival(
        request.at,
        request.prompt_tokens,
        request.output_tokens,
        request.tenant,
        request.priority,
        request.max_tokens,
        request.hashes,
        name=request.name,
    )
