"""What the target of a control entry names, beside a request or a submission; pure."""

from common.messages import WorkerId

TENANT = "tenant:"
WORKER = "worker:"


def tenant_of(target: str) -> str | None:
    return target.removeprefix(TENANT) or None if target.startswith(TENANT) else None


def worker_of(target: str) -> WorkerId | None:
    return WorkerId(target.removeprefix(WORKER)) or None if target.startswith(WORKER) else None
