"""Iterations as text: a row for each request, a column for each iteration of one worker."""

from collections.abc import Collection, Mapping, Sequence

from common.messages import Chunk, RequestId
from scheduler.simulation.track import Track

PREFILL, DECODE, AGAIN, IDLE, WAITS, SWAPPED = "PdR-.s"
LEGEND = (
    "P computes its prompt, d decodes, R computes anew what a preemption dropped, "
    "- has a row and no tokens in this iteration, . waits, s waits in host memory"
)


class Recorder:
    """Remembers `num_steps` iterations from `first_step` (counted from 1) on."""

    def __init__(self, first_step: int, num_steps: int) -> None:
        self.first_step = first_step
        self.num_steps = num_steps
        self.columns: list[dict[RequestId, str]] = []
        self.has_more = False  # iterations behind the last that is remembered
        self._step = 0

    @property
    def is_on(self) -> bool:
        return self.num_steps > 0 and not self.has_more

    def note(
        self,
        chunks: Sequence[Chunk],
        rows: Mapping[RequestId, Track],
        present: Collection[Track],
    ) -> None:
        """An iteration computed these chunks; `present`: who was in line or had a row."""
        self._step += 1
        if self._step < self.first_step:
            return
        if len(self.columns) == self.num_steps:
            self.has_more = True
            return
        column = {t.id: _mark_idle(t, rows) for t in present if not t.is_over}
        column |= {c.request_id: _mark_chunk(c, rows[c.request_id]) for c in chunks}
        self.columns.append(column)


def _mark_idle(track: Track, rows: Mapping[RequestId, Track]) -> str:
    if track.id in rows:
        return IDLE
    return SWAPPED if track.is_swapped else WAITS


def _mark_chunk(chunk: Chunk, track: Track) -> str:
    """`track` has the chunk's token already."""
    if track.num_output == chunk.samples:
        return PREFILL
    is_next = chunk.count == 1 and chunk.start >= track.num_prompt
    return DECODE if is_next else AGAIN


def draw(recorder: Recorder, title: str, most_rows: int) -> str:
    columns = recorder.columns
    names = list(dict.fromkeys(name for column in columns for name in column))
    width = max((len(name) for name in names), default=0)
    last = recorder.first_step + len(columns) - 1
    lines = [f"{title}, iterations {recorder.first_step} to {last}: {LEGEND}"]
    for name in names[:most_rows]:
        marks = "".join(column.get(name, " ") for column in columns)
        lines.append(f"{name:<{width}} {marks}".rstrip())
    if len(names) > most_rows:
        lines.append(f"({len(names) - most_rows} more requests are not drawn: --timeline-rows)")
    if recorder.has_more:
        lines.append("(later iterations are not drawn: --timeline-steps, --timeline-from)")
    return "\n".join(lines)
