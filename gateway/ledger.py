"""What one answer cost and how long it took, counted once when it is over, however it ended.

An answer that is shown again, or elsewhere, was counted where it was asked for.
"""

import time
from typing import Protocol

import structlog

from common.messages import Ended, FinishReason, SubmissionId, Submit
from common.metrics import GatewayMetrics

REASONS = {  # in vLLM's words
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.DEADLINE: "abort",
    FinishReason.ERROR: "error",
    FinishReason.REFUSED: "error",
    FinishReason.OVERLOADED: "error",
}

log = structlog.get_logger()


class Ledger(Protocol):
    """What an exchange tells of: tokens as they arrive, ends, and that it is over."""

    ended: dict[int, Ended]

    def arrive(self, choice: int, now: float) -> None: ...

    def end(self, choice: int, end: Ended) -> None: ...

    def close(self, num_output: list[int], reasons: list[FinishReason | None]) -> None: ...


class CountingLedger:
    """Of whoever asked."""

    def __init__(self, submit: Submit, metrics: GatewayMetrics, began_at: float) -> None:
        self.submit = submit
        self.metrics = metrics
        self.began_at = began_at  # monotonic seconds
        self.ended: dict[int, Ended] = {}
        self._first_at: dict[int, float] = {}
        self._last_at: dict[int, float] = {}

    def arrive(self, choice: int, now: float) -> None:
        """Tokens of a choice came."""
        if (last := self._last_at.get(choice)) is not None:
            self.metrics.itl.observe(now - last)
        else:
            if not self._first_at:
                self.metrics.ttft.observe(now - self.began_at)
            self._first_at[choice] = now
        self._last_at[choice] = now

    def end(self, choice: int, end: Ended) -> None:
        self.ended[choice] = end
        if end.reason is FinishReason.ERROR:
            log.warning("request failed", request_id=end.request_id, error=end.error)

    def close(self, num_output: list[int], reasons: list[FinishReason | None]) -> None:
        """The answer is over. By choice: its output tokens; how it ended, None: cut off."""
        now = time.monotonic()
        num_prompt = sum(map(len, self.submit.prompts))
        self.metrics.prompt_tokens.inc(num_prompt)
        self.metrics.output_tokens.inc(sum(num_output))
        self.metrics.request_prompt_tokens.observe(num_prompt)
        self.metrics.e2e.observe(now - self.began_at)
        names = [REASONS[reason] if reason is not None else "abort" for reason in reasons]
        for choice, (count, name) in enumerate(zip(num_output, names, strict=True)):
            self.metrics.count_choice(name)
            self.metrics.request_output_tokens.observe(count)
            if count > 1:
                spent = self._last_at[choice] - self._first_at[choice]
                self.metrics.tpot.observe(spent / (count - 1))
        log.info(
            "request over",
            request_id=self.submit.submission_id,
            tenant=self.submit.tenant,
            prompt_tokens=num_prompt,
            output_tokens=sum(num_output),
            reason=",".join(sorted(set(names))),
            ttft_ms=self._milliseconds(min(self._first_at.values(), default=None)),
            e2e_ms=self._milliseconds(now),
        )

    def _milliseconds(self, at: float | None) -> float | None:
        return None if at is None else round((at - self.began_at) * 1000, 1)


class QuietLedger:
    """Of whoever looks on."""

    def __init__(self, submission: SubmissionId) -> None:
        self.submission = submission
        self.ended: dict[int, Ended] = {}

    def arrive(self, choice: int, now: float) -> None:
        pass

    def end(self, choice: int, end: Ended) -> None:
        self.ended[choice] = end

    def close(self, num_output: list[int], reasons: list[FinishReason | None]) -> None:
        log.info(
            "shown again",
            request_id=self.submission,
            output_tokens=sum(num_output),
            is_complete=None not in reasons,
        )
