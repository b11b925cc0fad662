"""What a client is told of an answer that failed, by how its choice ended; pure."""

from common.messages import FinishReason
from gateway.errors import ApiError

SERVER, CLIENT, RATE = "server_error", "invalid_request_error", "rate_limit_error"
FAILURES = {  # why a choice ended without an answer -> status, type, code, message
    FinishReason.CANCELLED: (499, SERVER, "cancelled", "The request was cancelled."),
    FinishReason.DEADLINE: (504, SERVER, "deadline_exceeded", "The request's deadline passed."),
    FinishReason.ERROR: (500, SERVER, "internal_error", "The request failed."),
    FinishReason.REFUSED: (400, CLIENT, "never_fits", "The request can never run here."),
    FinishReason.OVERLOADED: (429, RATE, "overloaded", "Too many requests are open."),
}


def failure_of(reason: FinishReason, error: str = "") -> ApiError:
    """`reason` is one of FAILURES, `error` is `Ended.error`.

    Scheduler and worker write that text for people: it never is the text of an exception.
    """
    status, kind, code, message = FAILURES[reason]
    text = f"{message[:-1]}: {error}." if error else message
    return ApiError(text, status=status, kind=kind, code=code)
