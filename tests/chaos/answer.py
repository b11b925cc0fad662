"""What a client asked for, what the right answer is, and the answer as it comes; pure.

`truth` of the simulated engine says every token of every answer; frames say how many tokens their
text stands for. So each frame is checked when it comes: nothing lost, repeated or somebody else's.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from cli.bench_stream import error_kind, frame_data
from gateway import positions
from gpu_worker.simulated import truth

DONE = b"[DONE]"


@dataclass(frozen=True)
class Wish:
    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    has_usage: bool
    key: str  # Idempotency-Key; "": none, and the client does not come back
    leaves_after: int  # frames; 0: it stays

    def body(self, model: str) -> bytes:
        wanted: dict[str, Any] = {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "n": self.n,
            "stream": True,
            "ignore_eos": True,
        }
        if self.has_usage:
            wanted["stream_options"] = {"include_usage": True}
        return orjson.dumps(wanted)

    def tokens(self) -> list[int]:
        return [truth(self.prompt, position) for position in range(self.max_tokens)]


class Truth:
    """The text of each choice, and how much of it each number of tokens makes certain."""

    def __init__(self, wish: Wish, token_bytes: Callable[[int], bytes]) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        pieces = [decode(token_bytes(token)) for token in wish.tokens()]
        self.ends = [0]  # ends[n]: characters that n tokens make certain
        for piece in pieces:
            self.ends.append(self.ends[-1] + len(piece))
        self.text = "".join(pieces) + decode(b"", True)


@dataclass
class Choice:
    text: str = ""
    num_tokens: int = 0  # that the text stands for
    is_finished: bool = False


@dataclass
class Answer:
    """Fed with the bytes of one connection after the other. `wrong` says what must not be."""

    wish: Wish
    truth: Truth
    clock: Callable[[], float]
    outcome: str = "unfinished"
    stream: str = ""  # its id, once a frame told it
    last_event: str = ""
    is_done: bool = False
    error: str = ""  # its code, if this connection told one
    times: list[float] = field(default_factory=list)  # of frames
    wrong: list[str] = field(default_factory=list)
    num_connections: int = 0
    _rest: bytes = b""
    _usage: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_at = self.over_at = self.clock()
        self.choices = [Choice() for _ in range(self.wish.n)]

    @property
    def num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def connect(self) -> None:
        """What a broken connection left incomplete comes again."""
        self._rest, self.error = b"", ""
        self.num_connections += 1

    def feed(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if not frame.startswith(b":"):
                self._take(frame)

    def refused_with(self) -> str:
        """The code of an error that is the whole body."""
        try:
            return error_kind(orjson.loads(self._rest))
        except orjson.JSONDecodeError:
            return "no JSON"

    def _take(self, frame: bytes) -> None:
        self._check(not self.is_done and not self.error, "a frame behind the end")
        data = frame_data(frame)
        if data == DONE:
            return self._finish()
        chunk = orjson.loads(data)
        if "error" in chunk:
            self.error = error_kind(chunk)
            return None
        self.stream = self.stream or chunk["id"]
        self._check(self.stream == chunk["id"], f"{chunk['id']} in the place of {self.stream}")
        self.times.append(self.clock())
        event = frame.partition(b"\n")[0].removeprefix(b"id: ").decode()
        position = positions.read(event, self.wish.n)
        for choice in chunk["choices"]:
            self._grow(choice, position)
        if chunk.get("usage"):
            self._check(not self._usage, "usage twice")
            self._usage = chunk["usage"]
        self.last_event = event
        return None

    def _grow(self, told: dict[str, Any], position: positions.Position) -> None:
        index = told["index"]
        choice, num_tokens = self.choices[index], position.num_tokens[index]
        self._check(not choice.is_finished, f"choice {index} goes on behind its end")
        self._check(num_tokens <= self.wish.max_tokens, f"{num_tokens} tokens")
        choice.text += told["text"]
        if told["finish_reason"]:
            choice.is_finished = True
            expected = self.truth.text
            self._check(told["finish_reason"] == "length", f"finish {told['finish_reason']}")
            self._check(num_tokens == self.wish.max_tokens, f"finish after {num_tokens} tokens")
        else:
            self._check(num_tokens > choice.num_tokens, f"token {num_tokens} again")
            expected = self.truth.text[: self.truth.ends[num_tokens]]
        self._check(choice.text == expected, f"choice {index}: not the {num_tokens} right tokens")
        choice.num_tokens = num_tokens

    def _finish(self) -> None:
        self.is_done = True
        self._check(all(choice.is_finished for choice in self.choices), "[DONE] before the end")
        if self.wish.has_usage:
            told = self._usage.get("prompt_tokens"), self._usage.get("completion_tokens")
            expected = len(self.wish.prompt), self.wish.n * self.wish.max_tokens
            self._check(told == expected, f"usage {told} in the place of {expected}")

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong.append(f"{self.stream or self.wish.key}: {text}")
