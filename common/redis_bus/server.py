"""What must be true of the server before it is used: version, durability, our functions in it."""

import asyncio
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import structlog
from redis.exceptions import NoPermissionError, ResponseError

from common.bus import FullError, ServerError
from common.redis_bus.client import Client, raise_if_error
from common.redis_bus.connection import LostError
from common.redis_bus.wire import hash_fields

log = structlog.get_logger()

LIBRARY = "chairlift"
OLDEST = (7, 0)  # with functions
REPAIRED_VALKEY = (9, 1, 2)  # whose append-only file keeps what follows a torn transaction
REWRITE_POLL_SECONDS = 0.05


def library_code() -> str:
    return resources.files(__package__).joinpath("functions.lua").read_text()


class Preparation:
    """Done at connection and after every loss of it. Speaks once about each start of the server."""

    def __init__(self) -> None:
        self._code = library_code()
        self._run_id = ""

    async def __call__(self, client: Client) -> None:
        info = _info(await _one(client, "INFO"))
        if info.get("loading", "0") != "0":
            raise LostError("the server is loading its data")
        check_version(info)
        is_new = info.get("run_id", "") != self._run_id
        needs_care = info.get("aof_enabled") == "1" and not keeps_torn_tail(info)
        if is_new:
            await _warn_of_settings(client, info)
            if needs_care:
                await _warn_of_default_user(client)
        if needs_care:
            await rewrite_append_only_file(client)
        await self._load_library(client)
        self._run_id = info.get("run_id", "")

    async def _load_library(self, client: Client) -> None:
        listed = await _one(client, "FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
        codes = [hash_fields(library).get(b"library_code") for library in listed]
        if codes != [self._code.encode()]:
            await _one(client, "FUNCTION", "LOAD", "REPLACE", self._code)
            log.info("functions loaded into redis", library=LIBRARY)


def check_version(info: Mapping[str, str]) -> None:
    version = version_of(info.get("redis_version", "0"))
    if version < OLDEST:
        raise ServerError(
            f"Redis {info.get('redis_version')} is too old: functions need 7.0 or later,"
            " or any Valkey"
        )


def keeps_torn_tail(info: Mapping[str, str]) -> bool:
    """Whether writes after a restart are safe behind a file that ended inside a transaction."""
    if info.get("server_name") != "valkey":
        return False
    return version_of(info.get("valkey_version", "0")) >= REPAIRED_VALKEY


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


async def _warn_of_settings(client: Client, info: Mapping[str, str]) -> None:
    if info.get("aof_enabled") != "1":
        log.warning(
            "redis keeps no append-only file: a restart of it loses accepted requests",
            cure="appendonly yes, appendfsync always",
        )
        return
    fsync = await _setting(client, "appendfsync")
    if fsync not in (None, "always"):
        log.warning(
            "redis may lose acknowledged writes when it is killed",
            appendfsync=fsync,
            cure="appendfsync always",
        )
    policy = await _setting(client, "maxmemory-policy")
    if policy not in (None, "noeviction"):
        log.warning("redis may evict what is in line", policy=policy, cure="noeviction")


async def _warn_of_default_user(client: Client) -> None:
    """As this user older servers read their file, and drop transactions that it may not do.

    One of ours is a write that meets a key whose time to live is over: the server removes the key
    and writes, in a transaction.
    """
    [reply] = await client.run([("ACL", "GETUSER", "default")])
    if isinstance(reply, ResponseError):  # we may not ask
        return
    user = hash_fields(reply)
    rights = user.get(b"commands", b""), user.get(b"keys", b"")
    if rights != (b"+@all", b"~*"):
        log.warning(
            "redis may drop acknowledged writes at a restart: its default user is restricted",
            rights=b" ".join(rights).decode(errors="replace"),
            cure="ACL SETUSER default +@all ~* and a long password; or Valkey 9.1.2",
        )
    elif b"nopass" in user.get(b"flags", ()):
        log.warning(
            "redis asks for no password of its default user, who must have all rights",
            cure="requirepass",
        )


async def rewrite_append_only_file(client: Client) -> None:
    """Once for each start of the server, whoever comes first; a torn tail is gone after it."""
    has_asked = False
    while not _was_rewritten(info := _info(await _one(client, "INFO", "persistence"))):
        is_busy = "1" in (info["aof_rewrite_in_progress"], info["aof_rewrite_scheduled"])
        if has_asked and not is_busy:
            raise LostError("the server could not rewrite its append-only file: see its log")
        if not is_busy:
            log.info("rewriting the append-only file, as this server's version needs it")
            await _ask_for_rewrite(client)
            has_asked = True
        await asyncio.sleep(REWRITE_POLL_SECONDS)


async def _ask_for_rewrite(client: Client) -> None:
    [reply] = await client.run([("BGREWRITEAOF",)])
    if isinstance(reply, NoPermissionError):
        raise_if_error(reply)
    was_quicker = "already in progress" in str(reply)  # somebody else
    if isinstance(reply, ResponseError) and not was_quicker:  # as on a full disk
        raise LostError(str(reply))


def _was_rewritten(info: Mapping[str, str]) -> bool:
    """Since the server started."""
    return info["aof_last_rewrite_time_sec"] != "-1" and info["aof_last_bgrewrite_status"] == "ok"


async def _setting(client: Client, name: str) -> str | None:
    """None where the server does not let us know."""
    [reply] = await client.run([("CONFIG", "GET", name)])
    if isinstance(reply, ResponseError):
        return None
    value = hash_fields(reply).get(name.encode())
    return None if value is None else value.decode()


async def _one(client: Client, *command: str) -> Any:
    [reply] = await client.run([command])
    try:
        raise_if_error(reply)
    except FullError as error:  # loading functions needs memory: only waiting helps
        raise LostError(str(error)) from None
    return reply


def _info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
