"""What could not be understood is passed over and reported once."""

from collections.abc import Iterable
from functools import lru_cache

import structlog

from common.json_values import DecodeError

log = structlog.get_logger()


@lru_cache(maxsize=1024)  # a field that is read again and again is reported once
def pass_over(where: str, entry: str, error: str, num_bytes: int) -> None:
    log.warning("passed over", where=where, entry=entry, error=error, num_bytes=num_bytes)


def report(where: str, entry: str, fields: Iterable[bytes], error: DecodeError) -> None:
    pass_over(where, entry, str(error), sum(map(len, fields)))
