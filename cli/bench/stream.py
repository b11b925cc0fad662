"""An answer's stream of frames: when each came, and what the few that are parsed say."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any

TAIL = 4  # frames kept for the end: the finish, the usage, [DONE], and one to spare
Clock = Callable[[], float]


class TokenStream:
    """Counts frames that carry tokens. Only the first ones and the last ones are parsed.

    Between the first token and the last frames everything counts as a token frame; the last
    ones are looked at again in `close`.
    """

    def __init__(self, clock: Clock, *, keeps_frames: bool = False) -> None:
        self.times: list[float] = []  # of frames that carry tokens
        self.error = ""  # kind, if the server told one in the stream
        self.is_done = False  # [DONE] came
        self.usage: dict[str, Any] = {}
        self.last = 0.0  # when anything came last
        self._clock = clock
        self._rest = b""
        self._tail: deque[bytes] = deque(maxlen=TAIL)  # the frames of the last `times`
        self._kept: list[bytes] | None = [] if keeps_frames else None  # of all `times`

    def feed(self, body: bytes) -> None:
        """Pieces of any size. A carriage return is part of a line end, never of JSON."""
        self.last = self._clock()
        self._split(body.replace(b"\r", b""), self.last)

    def _split(self, body: bytes, now: float) -> None:
        *frames, self._rest = (self._rest + body).split(b"\n\n")
        for frame in frames:
            if not (frame.startswith(b"data:") or b"\ndata:" in frame):
                continue  # a comment
            if self.times or self._look(frame):
                self.times.append(now)
                self._tail.append(frame)
                if self._kept is not None:
                    self._kept.append(frame)

    def close(self) -> None:
        """No more will come: take back the last frames that carried no token."""
        if self._rest:
            self._split(b"\n\n", self.last)
        while self._tail and not self._look(self._tail[-1]):
            self._tail.pop()
            self.times.pop()

    def text(self) -> str:
        """The answer, where frames were kept and no error came."""
        chunks = [json.loads(frame_data(frame)) for frame in (self._kept or [])[: len(self.times)]]
        return "".join(
            choice_text(choice) for chunk in chunks for choice in chunk.get("choices") or ()
        )

    def _look(self, frame: bytes) -> bool:
        """Whether it carries a token; notes what else it says."""
        data = frame_data(frame)
        if data == b"[DONE]":
            self.is_done = True
            return False
        try:
            chunk = json.loads(data)
        except ValueError:
            self.error = "frame is no JSON"
            return False
        if not isinstance(chunk, dict):
            self.error = "frame is no object"
            return False
        if "error" in chunk:
            self.error = f"in the stream: {error_kind(chunk)}"
            return False
        try:
            return self._understand(chunk)
        except (AttributeError, TypeError):
            self.error = "frame of another shape"
            return False

    def _understand(self, chunk: dict[str, Any]) -> bool:
        usage = chunk.get("usage") or {}
        if usage.get("completion_tokens", 0) >= self.usage.get("completion_tokens", 0):
            self.usage = usage or self.usage  # some servers count along in every frame
        return any(carries_token(choice) for choice in chunk.get("choices") or ())


def frame_data(frame: bytes) -> bytes:
    lines = (line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(lines)


def carries_token(choice: dict[str, Any]) -> bool:
    """A token's text may be empty (half a character), but then the frame says nothing else."""
    delta = choice.get("delta", choice)
    if any(delta.get(name) for name in ("text", "content", "reasoning_content", "tool_calls")):
        return True
    return not choice.get("finish_reason") and "role" not in delta


def choice_text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta", choice)
    return str(delta.get("text") or delta.get("content") or "")


def error_kind(answer: object) -> str:
    """Of an error body in the API's shape, its code or type."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return "error"
    return str(error.get("code") or error.get("type") or "error")
