"""One line of the table of times: a kernel, what it must move and compute, and what torch has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.gpu.machine import Machine
from tests.gpu.rates import Rates
from tests.gpu.report import Report
from tests.gpu_worker.kernel_costs import Cost

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timed:
    cost: Cost  # at the sizes of 8B, whatever a dry run takes in their place
    run: Run
    torch_name: str = ""
    torch_run: Run | None = None
    context: int = 0  # of attention

    @property
    def needed_seconds(self) -> float:
        """At most, compilation included."""
        return 12.0 if self.torch_name == "torch.compile" else 3.0


def measure(machine: Machine, report: Report, rates: Rates, timed: Timed) -> float:
    """The share of the floor's speed that the kernel has."""
    cost = timed.cost
    seconds = machine.seconds(timed.run)
    floor = rates.floor_seconds(cost.num_bytes, cost.flops)
    values: dict[str, Any] = {
        "kernel": cost.name,
        "rows": cost.num_rows,
        "context": timed.context,
        "floor_us": floor * 1e6,
        "predicted_us": cost.predicted_us,
        "us": seconds * 1e6,
        "share": floor / seconds if seconds else 0.0,
        "torch": timed.torch_name,
        "torch_us": _torch_us(machine, timed),
    }
    report.row(**values)
    share: float = values["share"]
    return share


def _torch_us(machine: Machine, timed: Timed) -> float | str:
    """Or why it could not be measured: whether torch can is not what is checked."""
    if timed.torch_run is None:
        return ""
    try:
        return machine.seconds(timed.torch_run) * 1e6
    except Exception as error:  # noqa: BLE001 - of many kinds, and told
        return f"{type(error).__name__}: {error}"[:60]
