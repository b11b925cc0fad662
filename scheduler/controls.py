"""What `control` asks for, done to the requests that it means; pure.

An entry stays in the stream until what it asked for is written, so that the next leader reads it
again: a cancel or stop until the end is, an attach, hold or priority until it is undone or moot.
What undoes one goes with it, or stays behind it where the two do not mean the same requests.
"""

from collections.abc import Callable

from common.bus import DropControl, DropSubmit, EntryId, Write
from common.messages import Control, ControlKind, FinishReason, GatewayId, SubmissionId
from scheduler.core.request import Request
from scheduler.core.scheduler import Scheduler
from scheduler.ledger import Account, Ledger

UNDONE_BY = {
    ControlKind.DETACH: ControlKind.ATTACH,
    ControlKind.RELEASE: ControlKind.HOLD,
    ControlKind.PRIORITY: ControlKind.PRIORITY,  # the newest counts
}
UNDOING = {ControlKind.DETACH, ControlKind.RELEASE}


class Controls:
    def __init__(
        self,
        ledger: Ledger,
        end: Callable[[Account, FinishReason, int | None], None],
        core_of: Callable[[Account], Scheduler | None],
    ) -> None:
        self._ledger = ledger
        self._end = end
        self._core_of = core_of
        self._standing: dict[EntryId, Control] = {}

    def take(self, entry: EntryId, control: Control) -> list[Write]:
        """Do what the entry asks for. Known ones are ignored: a stream is read more than once."""
        if entry in self._standing:
            return []
        accounts = self._ledger.targets(control.target)
        writes = self._undo(control)
        if accounts and (control.kind not in UNDOING or self._counters(control, accounts)):
            self._keep(entry, control, accounts)
        else:
            writes.append(DropControl(entry))
        for account in accounts:
            self._apply(control, account)
        return writes

    def forget(self, entries: list[EntryId]) -> None:
        """Their ends are written: the ledger has dropped them."""
        for entry in entries:
            self._standing.pop(entry, None)

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
        self._standing[entry] = control
        submission = self._ledger.submissions.get(SubmissionId(control.target))
        (submission or accounts[0]).controls.append(entry)

    def _undo(self, control: Control) -> list[Write]:
        """Drop the standing entries that this one makes moot."""
        undone = UNDONE_BY.get(control.kind)
        if undone is None:
            return []
        moot = [
            entry
            for entry, other in self._standing.items()
            if other.kind is undone
            and other.target == control.target
            and other.gateway == control.gateway
        ]
        self.forget(moot)
        return [DropControl(entry) for entry in moot]

    def _counters(self, control: Control, accounts: list[Account]) -> bool:
        """Whether the next leader, without this entry, would do what it undoes."""
        own = accounts[0].submission.submit.gateway
        return (control.kind is ControlKind.DETACH and control.gateway == own) or any(
            account in accounts
            for other in self._standing.values()
            if other.kind is UNDONE_BY[control.kind] and other.gateway == control.gateway
            for account in self._ledger.targets(other.target)
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
