"""SSE frames and whole responses of one submission, from its head and its tokens only; pure.

Any gateway that is given the same head and tokens shows the same bytes, however the tokens came,
so it can go on with a stream that another one began. A token that makes text certain is one frame;
its `id:` is how much was shown (`positions.py`). Frames of several choices follow each other as
their tokens are fed: where their order matters, `Head.in_turn` settles it.

Usage counts every output token that was kept, the end token among them; where a stop string was
found, the tokens up to the one in which it ended. With `Head.usage_prompts` every chunk has that of
its own choice so far, which is a function of that choice's tokens, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from common.messages import Ended, FinishReason, SubmissionId
from gateway import positions
from gateway.chunks import Chunks
from gateway.detokenizer import Detokenizer
from gateway.errors import ApiError
from gateway.failures import FAILURES, failure_of
from gateway.head import Head
from gateway.positions import Position

DONE = b"data: [DONE]\n\n"


class Choice:
    """One choice: its text so far and how it ended."""

    def __init__(
        self, index: int, head: Head, token_bytes: Callable[[int], bytes], chunks: Chunks, had: int
    ) -> None:
        self.index = index
        self.had = had  # tokens whose text the client has
        self.text = Detokenizer(
            token_bytes, head.stop, min_tokens=head.min_tokens, hidden=frozenset(head.hidden)
        )
        self.begun = False  # its first chunk was sent, here or by another gateway
        self.parts: list[str] = []  # the whole text, kept only where nothing is streamed
        self.ended: Ended | None = None
        self.first = chunks.around_text(index, first=True)
        self.later = chunks.around_text(index, first=False)

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

    @property
    def failure(self) -> ApiError | None:
        """Why it ended without an answer."""
        if self.ended is None or (reason := self.finish_reason) not in FAILURES:
            return None
        return failure_of(reason, self.ended.error)


class Frames:
    """The answer to one submission as it grows. Feed every token of every choice, in order.

    Without `stream` in the head, `feed` and `end` give b"" and `response` gives all.
    """

    def __init__(
        self,
        submission: SubmissionId,
        frame: Mapping[str, Any],
        token_bytes: Callable[[int], bytes],
        after: Position | None = None,
    ) -> None:
        """`after`: what the client has. It is not given out again, but its tokens are fed too."""
        self.head = Head.of(frame)
        self.failure: ApiError | None = None  # of the first choice that failed: nothing follows
        self._after = after or Position.start(self.head.num_choices)
        self._chunks = Chunks(submission, self.head)
        self._streams = self.head.stream
        self._counts = bool(self.head.usage_prompts)
        self._choices = [
            Choice(index, self.head, token_bytes, self._chunks, had)
            for index, had in enumerate(self._after.num_tokens)
        ]

    def feed(self, choice: int, tokens: Sequence[int]) -> bytes:
        """A frame for each token that makes text certain."""
        state = self._choices[choice]
        if len(tokens) == 1:  # as they come, mostly
            return self._show(state, state.text.feed(tokens))
        return b"".join([self._show(state, state.text.feed((token,))) for token in tokens])

    def stopped(self, choice: int) -> int | None:
        """How many tokens to keep, once a stop string was found."""
        return self._choices[choice].text.stopped

    def num_tokens(self, choice: int) -> int:
        """Tokens taken so far; those after a stop string are not."""
        return self._choices[choice].text.num_tokens

    def end(self, choice: int, ended: Ended) -> bytes:
        """The last frame of a choice: text that was held, and the finish reason; or the error.

        All of its `ended.kept` tokens must have been fed; a repeated end gives b"".
        """
        state = self._choices[choice]
        if state.ended is not None:
            return b""
        state.ended = ended
        text = state.text.finish()
        if failure := state.failure:
            self.failure = self.failure or failure
            return error_event(failure) if self.head.stream else b""
        if not self.head.stream:
            state.parts.append(text)
            return b""
        if self._after.has_end[choice]:
            return b""
        usage = self._chunks.usage_of(choice, state.num_kept) if self._counts else None
        last = self._chunks.chunk(
            choice, text, state.finish_reason, first=not state.begun, usage=usage
        )
        return self._id_line() + last

    @property
    def finished(self) -> bool:
        return all(state.ended is not None for state in self._choices)

    def done(self) -> bytes:
        """The end of the stream: usage if it was asked for, then `[DONE]`."""
        if not self.head.include_usage or self._after.has_usage:
            return DONE
        return self._id_line(has_usage=True) + self._chunks.event([], self.usage()) + DONE

    def response(self) -> bytes:
        """The whole response as JSON. ApiError if a choice ended without an answer."""
        assert self.finished
        answers = []
        for state in self._choices:
            if failure := state.failure:
                raise failure
            assert state.finish_reason is not None
            answers.append(("".join(state.parts), state.finish_reason))
        return self._chunks.whole(answers, self.usage())

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
        if not self._streams:
            state.parts.append(text)
            return b""
        before, after = state.later if state.begun else state.first
        state.begun = True
        num_tokens = state.text.num_tokens
        if num_tokens <= state.had:
            return b""
        if self._counts:
            after = self._chunks.counted(state.index, after, num_tokens)
        return self._id_line() + before + orjson.dumps(text) + after

    def _id_line(self, *, has_usage: bool = False) -> bytes:
        if len(self._choices) == 1 and self._choices[0].ended is None:
            return b"id: %d\n" % self._choices[0].text.num_tokens
        # a choice that is not fed so far yet was shown all the same
        num_tokens = [max(state.text.num_tokens, state.had) for state in self._choices]
        has_end = [
            state.ended is not None or had
            for state, had in zip(self._choices, self._after.has_end, strict=True)
        ]
        return b"id: %s\n" % positions.written(num_tokens, has_end, has_usage=has_usage).encode()


def error_event(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n"
