"""What a client asked for, what the right answer is, and the answer as it comes; pure.

`truth` of the simulated engine says every token of every answer; frames say how many tokens their
text stands for. So each frame is checked when it comes: nothing lost, repeated or somebody else's.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from cli.bench.stream import error_kind, frame_data
from gateway import positions
from gpu_worker.simulated import truth

DONE = b"[DONE]"


@dataclass(frozen=True)
class Wish:
    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1
    has_usage: bool = False
    key: str = ""  # Idempotency-Key; "": none, and the client does not come back
    content: str = ""  # of the chat message that is rendered to `prompt`; "": a completion
    stop: str = ""
    streams: bool = True
    num_posts: int = 1  # of this same wish, at the same time or soon after each other
    leaves_after: int = 0  # frames; 0: it stays
    cancels_after: int = 0  # frames, by way of an operator; 0: not

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.content else "/v1/completions"

    def body(self, model: str) -> bytes:
        wanted: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "n": self.n,
            "stream": self.streams,
            "ignore_eos": True,
        }
        if self.content:
            wanted["messages"] = [{"role": "user", "content": self.content}]
        else:
            wanted["prompt"] = self.prompt
        if self.stop:
            wanted["stop"] = self.stop
        if self.has_usage and self.streams:
            wanted["stream_options"] = {"include_usage": True}
        return orjson.dumps(wanted)

    def tokens(self) -> list[int]:
        """All that are allowed, also those behind a stop string."""
        return [truth(self.prompt, position) for position in range(self.max_tokens)]


class Truth:
    """The text of each choice, and how much of it each number of tokens makes certain."""

    def __init__(self, wish: Wish, token_bytes: Callable[[int], bytes]) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        pieces = [decode(token_bytes(token)) for token in wish.tokens()]
        self.ends = [0]  # ends[n]: characters that n tokens make certain, but for a stop string
        for piece in pieces:
            self.ends.append(self.ends[-1] + len(piece))
        self.text = "".join(pieces) + decode(b"", True)
        self.num_tokens = wish.max_tokens  # that count
        self.finish = "length"
        self.num_held = 0  # characters that may be held back: they may begin the stop string
        if wish.stop:
            self._cut(wish.stop)

    def _cut(self, stop: str) -> None:
        """At the stop string, where the text has it."""
        self.num_held = len(stop) - 1
        begin = self.text.find(stop)
        if begin < 0:
            return
        end = begin + len(stop)
        self.num_tokens = next(
            (n for n, ends in enumerate(self.ends) if ends >= end), len(self.ends) - 1
        )
        self.finish = "stop"
        self.text = self.text[:begin]

    def fits(self, text: str, num_tokens: int) -> bool:
        """Whether it is what a client has that was shown so many tokens, and not the end."""
        certain = min(self.ends[num_tokens], len(self.text))
        least = min(self.ends[num_tokens] - self.num_held, len(self.text))
        return least <= len(text) <= certain and self.text.startswith(text)


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
    shown: list[tuple[float, int, int]] = field(default_factory=list)  # time, choice, tokens so far
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

    def take_whole(self) -> None:
        """What came is the whole body of an answer that was not streamed."""
        body = orjson.loads(self._rest)
        self._name(body["id"])
        self._usage = body["usage"]
        indexes = [told["index"] for told in body["choices"]]
        self.check(indexes == list(range(self.wish.n)), f"choices {indexes}")
        for told, choice in zip(body["choices"], self.choices, strict=False):
            choice.text = told["message"]["content"] if self.wish.content else told["text"]
            self._end(told["index"], told["finish_reason"], self.truth.num_tokens)
        self._finish()

    def refused_with(self) -> str:
        """The code of an error that is the whole body."""
        try:
            return error_kind(orjson.loads(self._rest))
        except orjson.JSONDecodeError:
            return "no JSON"

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong.append(f"{self.stream or self.wish.key}: {text}")

    def _name(self, stream: str) -> None:
        self.stream = self.stream or stream
        self.check(self.stream == stream, f"{stream} in the place of {self.stream}")

    def _take(self, frame: bytes) -> None:
        self.check(not self.is_done and not self.error, "a frame behind the end")
        data = frame_data(frame)
        if data == DONE:
            return self._finish()
        chunk = orjson.loads(data)
        if "error" in chunk:
            self.error = error_kind(chunk)
            return None
        self._name(chunk["id"])
        self.times.append(self.clock())
        event = frame.partition(b"\n")[0].removeprefix(b"id: ").decode()
        position = positions.read(event, self.wish.n)
        for choice in chunk["choices"]:
            self._grow(choice, position)
        if chunk.get("usage"):
            self.check(not self._usage, "usage twice")
            self._usage = chunk["usage"]
        self.last_event = event
        return None

    def _grow(self, told: dict[str, Any], position: positions.Position) -> None:
        index = told["index"]
        choice, num_tokens = self.choices[index], position.num_tokens[index]
        self.check(not choice.is_finished, f"choice {index} goes on behind its end")
        self.check(num_tokens <= self.truth.num_tokens, f"{num_tokens} tokens")
        choice.text += self._text_of(told, choice)
        if told["finish_reason"]:
            self._end(index, told["finish_reason"], num_tokens)
        else:
            self.check(num_tokens > choice.num_tokens, f"token {num_tokens} again")
            is_right = self.truth.fits(choice.text, min(num_tokens, self.truth.num_tokens))
            self.check(is_right, f"choice {index}: not the {num_tokens} right tokens")
            choice.num_tokens = num_tokens
        self.shown.append((self.times[-1], index, num_tokens))

    def _text_of(self, told: dict[str, Any], choice: Choice) -> str:
        if not self.wish.content:
            return str(told["text"])
        is_first = not choice.text and not choice.num_tokens
        self.check(("role" in told["delta"]) is is_first, "a role, though not first, or none")
        return str(told["delta"].get("content", ""))

    def _end(self, index: int, finish: str, num_tokens: int) -> None:
        choice, truth_ = self.choices[index], self.truth
        choice.is_finished, choice.num_tokens = True, num_tokens
        self.check(finish == truth_.finish, f"finish {finish}")
        self.check(num_tokens == truth_.num_tokens, f"finish after {num_tokens} tokens")
        self.check(choice.text == truth_.text, f"choice {index}: not the right text")

    def _finish(self) -> None:
        self.is_done = True
        self.check(all(choice.is_finished for choice in self.choices), "[DONE] before the end")
        if self.wish.has_usage:
            told = self._usage.get("prompt_tokens"), self._usage.get("completion_tokens")
            expected = len(self.wish.prompt), self.wish.n * self.truth.num_tokens
            self.check(told == expected, f"usage {told} in the place of {expected}")
