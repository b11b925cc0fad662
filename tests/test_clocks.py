"""No decision hangs on a wall clock, which may jump: it is read only for what people are shown."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "scheduler", "gpu_worker", "common", "cli")
WALL_CLOCK = re.compile(r"\btime\.time\(|\btime_ns\(|datetime\.(?:now|utcnow|today)|'TIME'")
SHOWN = {
    "gateway/intake.py": "`created` of an answer",
    "gateway/__main__.py": "`created` of the model",
    "common/template_sandbox.py": "the date that a chat template asks for",
    "cli/lab/machine.py": "the day of a measurement",
}


def test_the_wall_clock_is_read_only_to_be_shown() -> None:
    sources = [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".lua"}
    ]
    readers = {
        str(path.relative_to(ROOT)) for path in sources if WALL_CLOCK.search(path.read_text())
    }
    assert readers == set(SHOWN)
