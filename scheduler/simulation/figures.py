"""What a simulation found, as plain values: the same for tables and for JSON."""

from collections.abc import Mapping
from typing import Any

from scheduler.simulation.latencies import summary
from scheduler.simulation.measures import Measures
from scheduler.simulation.simulation import Simulation
from scheduler.simulation.worker import VirtualWorker

Figures = dict[str, Any]


def figures(simulation: Simulation) -> Figures:
    measures = simulation.measures
    seconds = simulation.now - measures.started_at
    workers = list(simulation.workers.values())
    busy = sum(worker.busy_seconds for worker in workers)
    steps = measures.num_steps
    found = {
        "requests": measures.num_came,
        "ended": measures.num_ended,
        "unfinished": len(simulation.tracks),
        "refused": dict(measures.refused),
        "seconds": seconds,
        "prompt_tokens": measures.prompt_tokens,
        "output_tokens": measures.output_tokens,
        "requests_per_second": _rate(measures.num_ended, seconds),
        "output_tokens_per_second": _rate(measures.output_tokens, seconds),
        "tokens_per_second": _rate(measures.prompt_tokens + measures.output_tokens, seconds),
        "good_requests_per_second": _rate(measures.num_good, seconds),
        **measures.latencies.summaries(),
        "steps": steps,
        "rows_per_step": _rate(measures.num_rows, steps),
        "tokens_per_step": _rate(measures.step_tokens, steps),
        "busy_share": _rate(busy, seconds * len(workers)),
        "cache": _cache(workers),
        "prefix_hits": {
            "token_share": _rate(measures.cached_tokens, measures.prompt_tokens),
            "block_share": _rate(measures.cached_blocks, measures.prompt_blocks),
        },
        "preemptions": dict(sorted(measures.preemptions.items())),
        "prediction_error": max(worker.core.cost.error for worker in workers),
        "fairness": {
            "mean_gap": measures.fairness.mean_gap,
            "max_gap": measures.fairness.max_gap,
            "seconds": measures.fairness.seconds,
        },
        "tenants": _tenants(measures, seconds),
    }
    if measures.keeps_requests:  # name, tenant, arrival, first and last token, tokens in and out
        found["each_request"] = measures.requests
    return found


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _cache(workers: list[VirtualWorker]) -> Mapping[str, float]:
    """Shares of slots, weighted by time: taken of all; of the taken, those that hold no token."""
    uses = [worker.use for worker in workers]
    taken = sum(use.taken_seconds for use in uses)
    empty = sum(use.empty_seconds for use in uses)
    useless = sum(use.useless_seconds for use in uses)
    slots = sum(use.seconds * use.num_blocks * use.block_size for use in uses)
    return {
        "taken_share": _rate(taken, slots),
        "most_taken_share": max(use.most_taken / use.num_blocks for use in uses),
        "waste_share": _rate(empty, taken),
        "reserved_share": _rate(empty - useless, taken),
        "useless_share": _rate(useless, taken),
    }


def _tenants(measures: Measures, seconds: float) -> dict[str, Figures]:
    service = measures.fairness.service()
    found = {}
    for name in sorted(service):
        tenant = measures.tenant(name)
        found[name] = {
            "ended": tenant.num_ended,
            "prompt_tokens": tenant.prompt_tokens,
            "output_tokens": tenant.output_tokens,
            "service": service[name],
            "good_requests_per_second": _rate(tenant.num_good, seconds),
            "ttft_seconds": summary(tenant.latencies.ttft),
            "tpot_seconds": summary(tenant.latencies.tpot),
            "e2e_seconds": summary(tenant.latencies.e2e),
        }
    return found
