"""SSE frames and whole responses of one submission, from its head and its tokens only; pure.

Any gateway that is given the same head and tokens shows the same text, so it can go on with a
stream that another one began. `id:` of a frame is the number of tokens shown so far, one count a
choice: `5`, or `5,3` for two choices.

Usage counts every output token that was kept, the end token among them; where a stop string was
found, the tokens up to the one in which it ended.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from common.messages import Ended, FinishReason, SubmissionId
from gateway.detokenizer import Detokenizer
from gateway.errors import ApiError

DONE = b"data: [DONE]\n\n"
SERVER, CLIENT, RATE = "server_error", "invalid_request_error", "rate_limit_error"
FAILURES = {  # why a choice ended without an answer -> status, type, code, message
    FinishReason.CANCELLED: (499, SERVER, "cancelled", "The request was cancelled."),
    FinishReason.DEADLINE: (504, SERVER, "deadline_exceeded", "The request's deadline passed."),
    FinishReason.ERROR: (500, SERVER, "internal_error", "The request failed."),
    FinishReason.REFUSED: (400, CLIENT, "never_fits", "The request can never run here."),
    FinishReason.OVERLOADED: (429, RATE, "overloaded", "Too many requests are open."),
}


@dataclass(frozen=True, slots=True)
class Head:
    """What frames need of a request beside its tokens: `Submit.frame`, typed."""

    chat: bool
    model: str
    created: int  # seconds since the epoch
    num_choices: int  # of all prompts together
    n: int  # choices of each prompt
    num_prompt_tokens: int  # of all prompts together, each counted once
    stream: bool = False
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    hidden: tuple[int, ...] = ()  # end tokens that would otherwise be shown as text

    def to_frame(self) -> dict[str, Any]:
        """Plain JSON values, for `Submit.frame`."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"stop": list(self.stop), "hidden": list(self.hidden)}

    @classmethod
    def of(cls, frame: Mapping[str, Any]) -> Self:
        known = {name: frame[name] for name in cls.__slots__ if name in frame}
        return cls(**known | {name: tuple(known.get(name, ())) for name in ("stop", "hidden")})


class Choice:
    """One choice: its text so far and how it ended."""

    def __init__(
        self, index: int, head: Head, token_bytes: Callable[[int], bytes], shape: "Shape"
    ) -> None:
        self.text = Detokenizer(
            token_bytes, head.stop, min_tokens=head.min_tokens, hidden=frozenset(head.hidden)
        )
        self.begun = False  # its first chunk was sent, here or by another gateway
        self.parts: list[str] = []  # the whole text, kept only where nothing is streamed
        self.ended: Ended | None = None
        self.first = shape.around_text(index, first=True)
        self.later = shape.around_text(index, first=False)

    @property
    def num_kept(self) -> int:
        """Output tokens that count; final once the choice has ended."""
        if self.text.stopped is not None:
            return self.text.stopped
        return self.text.num_tokens if self.ended is None else self.ended.kept

    @property
    def finish_reason(self) -> FinishReason | None:
        """A stop string wins over whatever the scheduler's end says."""
        if self.ended is None:
            return None
        return FinishReason.STOP if self.text.stopped is not None else self.ended.reason


class Shape:
    """The JSON around a choice's text, in bytes made once: a frame then only escapes its text."""

    def __init__(self, submission: SubmissionId, head: Head) -> None:
        self.head = head
        self.common: dict[str, Any] = {
            "id": f"{'chatcmpl' if head.chat else 'cmpl'}-{submission}",
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": None,
        }
        if head.chat:
            self.common["object"] = "chat.completion" + (".chunk" if head.stream else "")

    def around_text(self, index: int, *, first: bool) -> tuple[bytes, bytes]:
        """What stands before and after the escaped text in a chunk of choice `index`."""
        before, after = self.chunk(index, "\0", None, first=first).split(b'"\\u0000"')
        return before, after

    def chunk(
        self, index: int, text: str | None, finish: FinishReason | None, *, first: bool = False
    ) -> bytes:
        """One `data:` line with its blank line; `text` None: a chunk that only says the end."""
        choice: dict[str, Any] = {"index": index}
        if self.head.chat:
            delta = {"role": "assistant"} if first else {}
            choice["delta"] = delta if text is None else delta | {"content": text}
        else:
            choice["text"] = text or ""
        choice |= {"logprobs": None, "finish_reason": finish}
        return self.event([choice], None)

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = self.common | {"choices": choices}
        if self.head.include_usage:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def whole(self, choices: Sequence[tuple[str, FinishReason]], usage: dict[str, Any]) -> bytes:
        """The response where nothing was streamed: (text, finish reason) of each choice."""
        answers: list[dict[str, Any]] = []
        for index, (text, finish) in enumerate(choices):
            answer: dict[str, Any] = {"index": index}
            if self.head.chat:
                answer["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                answer["text"] = text
            answers.append(answer | {"logprobs": None, "finish_reason": finish})
        return orjson.dumps(self.common | {"choices": answers, "usage": usage})


class Frames:
    """The answer to one submission as it grows. Feed every token of every choice, in order.

    Without `stream` in the head, `feed` and `end` give b"" and `response` gives all.
    """

    def __init__(
        self,
        submission: SubmissionId,
        frame: Mapping[str, Any],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self.head = Head.of(frame)
        self._shape = Shape(submission, self.head)
        self._choices = [
            Choice(index, self.head, token_bytes, self._shape)
            for index in range(self.head.num_choices)
        ]

    def feed(self, choice: int, tokens: Sequence[int]) -> bytes:
        """One frame with the text that these tokens make certain; b"" if there is none."""
        state = self._choices[choice]
        return self._show(state, state.text.feed(tokens))

    def skip(self, choice: int, tokens: Sequence[int]) -> None:
        """Take tokens whose text the client has: the first ones, before any `feed`."""
        state = self._choices[choice]
        state.text.feed(tokens)
        state.begun = state.begun or bool(tokens)

    def stopped(self, choice: int) -> int | None:
        """How many tokens to keep, once a stop string was found."""
        return self._choices[choice].text.stopped

    def num_tokens(self, choice: int) -> int:
        """Tokens taken so far; those after a stop string are not."""
        return self._choices[choice].text.num_tokens

    def end(self, choice: int, ended: Ended) -> bytes:
        """The last frames of a choice: text that was held, then the finish reason or an error.

        All of its `ended.kept` tokens must have been fed; a repeated end gives b"".
        """
        state = self._choices[choice]
        if state.ended is not None:
            return b""
        state.ended = ended
        shown = self._show(state, state.text.finish())
        if not self.head.stream:
            return b""
        failure = self._failure(state)
        if failure:
            return shown + b"data: " + failure.body() + b"\n\n"
        last = self._shape.chunk(choice, None, state.finish_reason, first=not state.begun)
        return shown + self._id_line() + last

    @property
    def finished(self) -> bool:
        return all(state.ended is not None for state in self._choices)

    def done(self) -> bytes:
        """The end of the stream: usage if it was asked for, then `[DONE]`."""
        if not self.head.include_usage:
            return DONE
        return self._id_line() + self._shape.event([], self.usage()) + DONE

    def response(self) -> bytes:
        """The whole response as JSON. ApiError if a choice ended without an answer."""
        assert self.finished
        answers = []
        for state in self._choices:
            if failure := self._failure(state):
                raise failure
            assert state.finish_reason is not None
            answers.append(("".join(state.parts), state.finish_reason))
        return self._shape.whole(answers, self.usage())

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object, exact once all choices have ended."""
        prompt = self.head.num_prompt_tokens
        output = sum(state.num_kept for state in self._choices)
        firsts = self._choices[:: self.head.n]  # of each prompt: a prompt counts once
        cached = sum(state.ended.cached_tokens for state in firsts if state.ended)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _show(self, state: Choice, text: str) -> bytes:
        if not text:
            return b""
        if not self.head.stream:
            state.parts.append(text)
            return b""
        before, after = state.later if state.begun else state.first
        state.begun = True
        return self._id_line() + before + orjson.dumps(text) + after

    def _id_line(self) -> bytes:
        if len(self._choices) == 1:
            return b"id: %d\n" % self._choices[0].text.num_tokens
        return (
            b"id: %s\n" % ",".join([str(state.text.num_tokens) for state in self._choices]).encode()
        )

    def _failure(self, state: Choice) -> ApiError | None:
        """Why there is no answer."""
        if state.ended is None or (reason := state.finish_reason) not in FAILURES:
            return None
        return failure_of(reason, state.ended.error)


def failure_of(reason: FinishReason, error: str = "") -> ApiError:
    """What a client is told of an answer that failed; `error` is `Ended.error`.

    Scheduler and worker write that text for people: it never is the text of an exception.
    """
    status, kind, code, message = FAILURES[reason]
    text = f"{message[:-1]}: {error}." if error else message
    return ApiError(text, status=status, kind=kind, code=code)
