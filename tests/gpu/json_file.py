"""A JSON file that is whole whenever somebody reads it."""

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1))
    part.replace(path)
