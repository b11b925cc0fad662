"""The JSON of answers in OpenAI's shapes, around the text of their choices; pure."""

from collections.abc import Sequence
from typing import Any

import orjson

from common.messages import FinishReason, SubmissionId
from gateway.head import Head

NO_USAGE = b'"usage":null}'


def stream_id(submission: SubmissionId, *, chat: bool) -> str:
    """What a client calls the request."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{submission}"


class Chunks:
    """Of one submission. What surrounds a text is made once: a frame only escapes its text."""

    def __init__(self, submission: SubmissionId, head: Head) -> None:
        self.head = head
        self.common: dict[str, Any] = {
            "id": stream_id(submission, chat=head.chat),
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

    def counted(self, index: int, after_text: bytes, num_tokens: int) -> bytes:
        """What stands after a text, with the usage of choice `index` so far."""
        usage = orjson.dumps(self.usage_of(index, num_tokens))
        return after_text.replace(NO_USAGE, b'"usage":%b}' % usage)

    def usage_of(self, index: int, num_tokens: int) -> dict[str, Any]:
        """Of one choice alone, and its prompt: other choices may be shown in any order."""
        prompt = self.head.usage_prompts[index // self.head.n]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": num_tokens,
            "total_tokens": prompt + num_tokens,
        }

    def chunk(
        self,
        index: int,
        text: str,
        finish: FinishReason | None,
        *,
        first: bool,
        usage: dict[str, Any] | None = None,
    ) -> bytes:
        """One `data:` line with its blank line. `first` of a choice: it says who speaks."""
        choice: dict[str, Any] = {"index": index}
        if self.head.chat:
            delta = {"role": "assistant"} if first else {}
            choice["delta"] = delta | {"content": text} if text else delta
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": finish}
        return self.event([choice], usage)

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = self.common | {"choices": choices}
        if self.head.include_usage or self.head.usage_prompts:
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
