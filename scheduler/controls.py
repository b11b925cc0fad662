"""What `control` asks for, done to the requests, tenants and workers that it means; pure.

An entry stays in the stream until what it asked for is written, so that the next leader reads it
again: a cancel or stop until the end is, an attach, hold or priority until it is undone or moot,
a drain or weight until it is undone. What undoes one goes with it, or stays behind it where the
two do not mean the same requests. Of a tenant those requests are meant that were accepted before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from common.bus import DropControl, DropSubmit, EntryId, Write
from common.messages import Control, ControlKind, FinishReason, GatewayId, WorkerId
from scheduler.core.request import Request
from scheduler.core.scheduler import Scheduler
from scheduler.ledger import Account, Ledger, Submission
from scheduler.pool_controls import PoolControls
from scheduler.targets import WORKER

UNDONE_BY = {
    ControlKind.ATTACH: {ControlKind.ATTACH, ControlKind.DETACH},
    ControlKind.DETACH: {ControlKind.ATTACH, ControlKind.DETACH},
    ControlKind.RELEASE: {ControlKind.HOLD, ControlKind.DRAIN},
    ControlKind.PRIORITY: {ControlKind.PRIORITY},  # the newest counts
    ControlKind.DRAIN: {ControlKind.DRAIN},
    ControlKind.WEIGHT: {ControlKind.WEIGHT},
}
UNDOING = {ControlKind.DETACH, ControlKind.RELEASE}
OF_THE_POOL = {ControlKind.DRAIN, ControlKind.WEIGHT}


@dataclass(slots=True)
class Standing:
    control: Control
    num_open: int = 0  # submissions or requests that it means


class Controls:
    def __init__(
        self,
        ledger: Ledger,
        end: Callable[[Account, FinishReason, int | None], None],
        core_of: Callable[[Account], Scheduler | None],
        of_the_pool: PoolControls,
    ) -> None:
        self.unheeded: list[tuple[EntryId, Control]] = []  # that mean nothing, for the log
        self._ledger = ledger
        self._end = end
        self._core_of = core_of
        self._of_the_pool = of_the_pool
        self._standing: dict[EntryId, Standing] = {}

    def take(self, entry: EntryId, control: Control) -> list[Write]:
        """Do what the entry asks for. Known ones are ignored: a stream is read more than once."""
        if entry in self._standing:
            return []
        writes = self._undo(control)
        is_direct = self._of_the_pool.take(control)
        if control.kind in OF_THE_POOL:
            accounts, stays = [], is_direct and self._of_the_pool.lasts(control)
        else:
            accounts = self._ledger.targets(control.target, entry)
            stays = control.kind not in UNDOING or self._counters(control, accounts)
        if not (accounts or is_direct or writes):
            self.unheeded.append((entry, control))
        if stays and (accounts or is_direct):
            self._keep(entry, control, accounts)
        else:
            writes.append(DropControl(entry))
        for account in accounts:
            self._apply(control, account)
        return writes

    def take_unheeded(self) -> list[tuple[EntryId, Control]]:
        unheeded, self.unheeded = self.unheeded, []
        return unheeded

    def forget(self, entries: list[EntryId]) -> list[Write]:
        """One that each of them means has ended, as is written; they go with the last one."""
        writes: list[Write] = []
        for entry in entries:
            if standing := self._standing.get(entry):
                standing.num_open -= 1
                if not standing.num_open:
                    writes += self._drop([entry])
        return writes

    def bury(self, worker: WorkerId) -> list[Write]:
        """A worker is lost, and its name never comes back."""
        return self._drop(
            [
                entry
                for entry, standing in self._standing.items()
                if standing.control.target == WORKER + worker
            ]
        )

    def drop_garbage(self, stream: str, entry: EntryId) -> list[Write]:
        """An entry that nobody can read would stay, and be read, for ever; a log's own goes."""
        match stream:
            case "control":
                return [DropControl(entry)]
            case "requests":
                return [DropSubmit(entry)]
            case _:
                return []

    def _keep(self, entry: EntryId, control: Control, accounts: list[Account]) -> None:
        """The entry goes when the ends of all that it means are written."""
        holders: dict[str, Account | Submission]
        if control.target in self._ledger.accounts:
            holders = {account.request.id: account for account in accounts}
        else:
            holders = {account.submission.entry: account.submission for account in accounts}
        self._standing[entry] = Standing(control, len(holders))
        for holder in holders.values():
            holder.controls.append(entry)

    def _undo(self, control: Control) -> list[Write]:
        """Drop the standing entries that this one makes moot."""
        undone = UNDONE_BY.get(control.kind)
        if undone is None:
            return []
        return self._drop(
            [
                entry
                for entry, standing in self._standing.items()
                if standing.control.kind in undone
                and standing.control.target == control.target
                and standing.control.gateway == control.gateway
            ]
        )

    def _drop(self, entries: list[EntryId]) -> list[Write]:
        for entry in entries:
            del self._standing[entry]
        return [DropControl(entry) for entry in entries]

    def _counters(self, control: Control, accounts: list[Account]) -> bool:
        """Whether the next leader, without this entry, would do what it undoes."""
        if not accounts:
            return False
        own = accounts[0].submission.submit.gateway
        if control.kind is ControlKind.DETACH and control.gateway == own:
            return True
        meant = {account.request.id for account in accounts}
        return any(
            account.request.id in meant
            for entry, standing in self._standing.items()
            if standing.control.kind in UNDONE_BY[control.kind] - UNDOING
            and standing.control.gateway == control.gateway
            and standing.control.kind not in OF_THE_POOL
            for account in self._ledger.targets(standing.control.target, entry)
        )

    def _apply(self, control: Control, account: Account) -> None:
        request, core = account.request, self._core_of(account)
        if control.kind in {ControlKind.HOLD, ControlKind.RELEASE}:
            account.is_held = control.kind is ControlKind.HOLD
        match control.kind:
            case ControlKind.CANCEL:
                self._end(account, FinishReason.CANCELLED, None)
            case ControlKind.STOP:
                self._end(account, FinishReason.STOP, control.kept)
            case ControlKind.ATTACH | ControlKind.DETACH:
                _show(request, core, _viewers(request, control))
            case _ if core:
                _move(core, request, control)
            case _:
                _mark(request, control)


def _viewers(request: Request, control: Control) -> tuple[GatewayId, ...]:
    others = tuple(gateway for gateway in request.gateways if gateway != control.gateway)
    return (*others, control.gateway) if control.kind is ControlKind.ATTACH else others


def _show(request: Request, core: Scheduler | None, viewers: tuple[GatewayId, ...]) -> None:
    if core:
        core.set_gateways(request.id, viewers)  # the worker hears of it with the next plan
    else:
        request.gateways = viewers


def _move(core: Scheduler, request: Request, control: Control) -> None:
    """Change the place of a request that a worker's core has."""
    match control.kind:
        case ControlKind.HOLD:
            core.hold(request.id)
        case ControlKind.RELEASE:
            core.release(request.id)
        case ControlKind.PRIORITY:
            core.set_priority(request.id, control.priority)


def _mark(request: Request, control: Control) -> None:
    """The same for one that no worker has yet."""
    match control.kind:
        case ControlKind.HOLD:
            request.held = True
        case ControlKind.RELEASE:
            request.held = False
        case ControlKind.PRIORITY:
            request.priority = control.priority
