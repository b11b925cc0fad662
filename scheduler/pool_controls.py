"""What `control` asks of a tenant or of a worker as such: drains, and weights; pure."""

from common.messages import Control, ControlKind, WorkerId
from scheduler.core.shares import Shares
from scheduler.fleet import Fleet
from scheduler.targets import tenant_of, worker_of


class PoolControls:
    def __init__(self, fleet: Fleet, shares: Shares) -> None:
        self._fleet = fleet
        self._shares = shares
        self._weights = dict(shares.weights)  # of settings

    def take(self, control: Control) -> bool:
        """Do what the entry asks for. False: it asks for nothing of the kind, or of nobody."""
        tenant, worker_id = tenant_of(control.target), worker_of(control.target)
        if tenant:
            return self._take_of_tenant(control, tenant)
        return worker_id is not None and self._take_of_worker(control, worker_id)

    def lasts(self, control: Control) -> bool:
        """Not a weight that the next leader begins with anyway."""
        weight = self._weights.get(tenant_of(control.target) or "", 1.0)
        return control.kind is not ControlKind.WEIGHT or control.weight != weight

    def knows(self, control: Control) -> bool:
        """Not of a worker that is only just joining."""
        worker_id = worker_of(control.target)
        return worker_id is None or worker_id in self._fleet.workers

    def _take_of_tenant(self, control: Control, tenant: str) -> bool:
        match control.kind:
            case ControlKind.DRAIN:
                self._fleet.drain_tenant(tenant)
            case ControlKind.RELEASE if tenant in self._fleet.drained_tenants:
                self._fleet.undrain_tenant(tenant)
            case ControlKind.WEIGHT:
                self._shares.set_weight(tenant, control.weight)
            case _:
                return False
        return True

    def _take_of_worker(self, control: Control, worker_id: WorkerId) -> bool:
        worker = self._fleet.workers.get(worker_id)
        if worker is None or control.kind not in {ControlKind.DRAIN, ControlKind.RELEASE}:
            return False
        had, worker.is_draining = worker.is_draining, control.kind is ControlKind.DRAIN
        return worker.is_draining or had
