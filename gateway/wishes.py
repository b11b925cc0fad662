"""What headers ask for beside the body: to be resumable, under which key, from where on; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from common.messages import SubmissionId
from gateway import positions
from gateway.errors import BadRequestError

KEY, RESUMABLE = "Idempotency-Key", "X-Resumable"
MAX_KEY = 255  # characters
ID_BYTES = 16
FLAGS = {"": False, "false": False, "0": False, "true": True, "1": True}


@dataclass(frozen=True, slots=True)
class Wishes:
    key: str = ""  # under which the request is known to its tenant; "": under none
    resumable: bool = False  # computed on for a while when nobody looks
    last_event: str = ""  # id of the last frame that the client has; "": it has none

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "Wishes":
        """`headers`: their names are looked up in any case. BadRequestError."""
        key = headers.get(KEY)
        if key is not None and not (0 < len(key) <= MAX_KEY and key.isprintable()):
            raise _wrong(KEY, f"1 to {MAX_KEY} printable characters", key)
        flag = headers.get(RESUMABLE, "").strip().lower()
        if flag not in FLAGS:
            raise _wrong(RESUMABLE, "`true` or `false`", flag)
        last_event = headers.get(positions.HEADER, "").strip()
        return cls(key or "", FLAGS[flag] or bool(key), last_event)


def id_under_key(secret: bytes, tenant: str, key: str) -> SubmissionId:
    """The same at every gateway, so that a request that is posted twice is one.

    Hashed with the pool's secret: whoever guesses a key cannot tell the id.
    """
    named = f"{len(tenant)}:{tenant}{key}".encode()
    return SubmissionId(blake2b(named, digest_size=ID_BYTES, key=secret).hexdigest())


def _wrong(header: str, expected: str, got: str) -> BadRequestError:
    message = f"Invalid '{header}': expected {expected}, but got {got[:100]!r}."
    return BadRequestError(message, header, "invalid_header")
