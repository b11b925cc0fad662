"""From options to a simulation that has run: workload, cost model, fleet, clock."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from common.messages import WorkerHello, WorkerId
from scheduler.core.shares import Shares
from scheduler.simulation.cores import build_fleet, tenant_weights
from scheduler.simulation.cost import CostModel
from scheduler.simulation.cost_models import cost_model, default_blocks, default_step_tokens
from scheduler.simulation.drawing import Recorder, draw
from scheduler.simulation.fairness import Fairness
from scheduler.simulation.figures import Figures, figures
from scheduler.simulation.measures import Goals, Measures
from scheduler.simulation.options import Options, SimulationSettings
from scheduler.simulation.simulation import Simulation
from scheduler.simulation.workload import Arrival, select
from scheduler.simulation.workload_files import read_workload
from scheduler.simulation.workload_made import gaps, lengths, levels_of, make_workload, shares

MADE_REQUESTS = 1000


@dataclass(frozen=True)
class Outcome:
    figures: Figures
    drawings: tuple[str, ...]  # one a worker


def run_case(
    options: Options, *, draws: bool = False, checks: bool = False, keeps_requests: bool = False
) -> Outcome:
    """Raises InputError."""
    settings = options.simulation
    cost = cost_model(options)
    hello = _hello(options, cost)
    weights = tenant_weights(options.scheduler)
    counters = Shares(weights=weights)
    fleet = build_fleet(options.scheduler, counters, hello, settings.workers)
    recorders = {
        name: Recorder(settings.timeline_from, settings.timeline_steps if draws else 0)
        for name in fleet.workers
    }
    fairness = Fairness(counters.input_weight, counters.output_weight, weights)
    goals = Goals(settings.ttft_goal, settings.tpot_goal)
    measures = Measures(goals, fairness, keeps_requests=keeps_requests)
    simulation = Simulation(
        fleet, cost, measures, recorders, max_tokens=settings.max_tokens, is_checked=checks
    )
    simulation.run(arrivals(settings), settings.stop_seconds or math.inf)
    drawings = [
        draw(recorder, name, settings.timeline_rows)
        for name, recorder in recorders.items()
        if recorder.columns
    ]
    return Outcome(figures(simulation), tuple(drawings))


def arrivals(settings: SimulationSettings) -> Iterator[Arrival]:
    if settings.workload:
        found = read_workload(settings.workload)
        return select(found, settings.requests, settings.rate_scale, settings.duration)
    made = make_workload(
        settings.requests or MADE_REQUESTS,
        gap=gaps(settings.arrivals, settings.rate, settings.burstiness),
        prompt_tokens=lengths(settings.prompt_tokens),
        output_tokens=lengths(settings.output_tokens),
        tenants=shares(settings.tenants),
        priorities=levels_of(settings.priorities),
        prefix_tokens=settings.prefix_tokens,
        seed=settings.seed,
    )
    return select(made, 0, 1.0, settings.duration)


def _hello(options: Options, cost: CostModel) -> WorkerHello:
    worker, settings = options.worker, options.simulation
    num_blocks = worker.num_blocks or default_blocks(cost, worker.block_size)
    return WorkerHello(
        WorkerId(""),
        model=settings.cost,
        device="simulated",
        num_blocks=num_blocks,
        block_size=worker.block_size,
        max_request_tokens=worker.max_model_len or num_blocks * worker.block_size,
        max_step_tokens=options.scheduler.max_step_tokens or default_step_tokens(options, cost),
        max_rows=worker.max_rows,
        num_host_blocks=settings.num_host_blocks or num_blocks,
    )
