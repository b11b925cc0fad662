"""What the containers of `compose.yaml` share, made at their first start: an API key, a password.

`python -m cli.first_start FOLDER [NAME]`: with a name, a further API key is made for it.
"""

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.embedded import durable
from common.api_keys import ApiKeyError, make_key
from common.config import UpSettings, read


def main(arguments: Sequence[str]) -> int:
    folder, name = Path(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    before = os.umask(0o077)
    try:
        _configure_server(folder)
        if name or not (folder / "api_keys").exists():
            _make_key(folder, name or "default")
    except ApiKeyError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    finally:
        os.umask(before)
    return 0


def _configure_server(folder: Path) -> None:
    """The server's configuration anew, its password and address once."""
    secret = folder / "redis_password"
    if not secret.exists():
        secret.write_text(secrets.token_hex(32))
    password = secret.read_text()
    (folder / "redis_url").write_text(f"redis://:{password}@redis:6379/0")
    max_bytes = read(UpSettings, "first_start", []).redis_bytes
    lines = ["bind * -::*", "port 6379", *durable(Path("/redis"), max_bytes, password)]
    (folder / "redis.conf").write_text("\n".join([*lines, ""]))


def _make_key(folder: Path, name: str) -> None:
    key, line = make_key(name)
    with (folder / "api_keys").open("a") as file:
        file.write(f"{line}\n")
    print(f"API key of {name}, shown only now: {key}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
