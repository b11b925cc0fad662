"""API keys: made once, shown once, and stored only as hashes in a file of lines.

    # comment
    name:sha256-of-the-key-in-hex[:weight]

A key is 256 random bits, so one round of SHA-256 is enough to store it by.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

PREFIX = "sk-chairlift-"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")


class ApiKeyError(Exception):
    """A line or name is not what it must be; the text says which, and never shows a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    name: str  # the tenant
    digest: bytes  # SHA-256 of the key
    weight: float = 1.0  # share of the tenant where shares are kept


def make_key(name: str) -> tuple[str, str]:
    """A new key for tenant `name`: the key itself, and its line for the file."""
    if not NAME.fullmatch(name):
        raise ApiKeyError(f"{name!r} is no name: letters, digits and ._@- only, at most 64")
    key = PREFIX + secrets.token_urlsafe(32)
    return key, f"{name}:{_digest(key).hex()}"


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of a file. ApiKeyError names the line that is wrong."""
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return tuple(_parse(number, line) for number, line in lines if line and line[0] != "#")


def find_key(keys: Sequence[ApiKey], presented: str) -> ApiKey | None:
    """The key that was presented. Takes as long whichever it is, or none."""
    digest, found = _digest(presented), None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _parse(number: int, line: str) -> ApiKey:
    name, digest, *rest = line.split(":")[:4] if line.count(":") else (line, "")
    if not NAME.fullmatch(name) or not DIGEST.fullmatch(digest.lower()) or len(rest) > 1:
        raise ApiKeyError(f"line {number} is not name:sha256[:weight]")
    return ApiKey(name, bytes.fromhex(digest), _weight(number, rest[0] if rest else "1"))


def _weight(number: int, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0.0 < weight < float("inf"):
        raise ApiKeyError(f"line {number}: the weight is no number above 0")
    return weight
