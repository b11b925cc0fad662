"""What all sections found, as one JSON file, and as text to end with."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.json_file import write_json

Row = dict[str, Any]


class Summary:
    """Reads what processes write into `folder`, a file for each section."""

    def __init__(self, folder: Path, sections: Sequence[str], path: Path | None) -> None:
        self._folder, self._sections, self._path = folder, sections, path
        self._began = time.monotonic()
        self._ended: dict[str, str] = {}  # sections whose process is gone, and how it ended
        self._written: dict[str, Any] = {}

    def ended(self, sections: Sequence[str], how: str) -> None:
        """What these have not finished they never will."""
        self._ended |= dict.fromkeys(sections, how)

    def sections(self) -> dict[str, Any]:
        return {name: self._findings(name) for name in self._sections}

    def failed(self) -> list[str]:
        return [name for name, found in self.sections().items() if found["status"] != "passed"]

    def write(self) -> None:
        """Bring the JSON file up to date, if there is to be one."""
        sections = self.sections()
        if self._path is None or sections == self._written:
            return
        self._written = sections
        seconds = round(time.monotonic() - self._began, 1)
        targets = [target for found in sections.values() for target in found["targets"]]
        whole = {"seconds": seconds, "failed": self.failed(), "targets": targets}
        write_json(self._path, whole | {"sections": sections})

    def text(self) -> str:
        sections = self.sections()
        parts = [_table(name, rows) for name, found in sections.items() for rows in _alike(found)]
        parts += [f"{name}: {note}" for name, found in sections.items() for note in found["notes"]]
        states = [
            {
                "section": name,
                "status": found["status"],
                "seconds": found["seconds"],
                "cases": sum("case" in row for row in found["rows"]),
                "why": found["error"].partition("\n")[0],
            }
            for name, found in sections.items()
        ]
        targets = [target for found in sections.values() for target in found["targets"]]
        return "\n\n".join([*parts, _table("sections", states), _table("targets", targets)])

    def _findings(self, name: str) -> Row:
        path = self._folder / f"{name}.json"
        found: Row = {"status": "waiting", "seconds": 0.0, "error": "", "rows": []}
        found |= {"notes": [], "targets": []}
        if path.exists():
            found |= json.loads(path.read_text())
        if name in self._ended and found["status"] in {"waiting", "running"}:
            found |= {"status": "failed", "error": self._ended[name]}
        return found


def _alike(found: Row) -> list[list[Row]]:
    """Rows with the same columns; of cases, those that failed."""
    tables: dict[tuple[str, ...], list[Row]] = {}
    for row in found["rows"]:
        if not row.get("ok", False):
            tables.setdefault(tuple(row), []).append(row)
    return list(tables.values())


def _table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{title}: none"
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")[:120]
