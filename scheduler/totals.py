"""What this leader has done since it took the lease, for `status`."""

from dataclasses import dataclass, field

from common.messages import FinishReason
from scheduler.core.decision import Reason


@dataclass(slots=True)
class Totals:
    steps: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of prompts, found in a prefix cache
    preempted: dict[Reason, int] = field(default_factory=dict)  # rows that had to leave, and how
    ended: dict[FinishReason, int] = field(default_factory=dict)
    moved: int = 0  # requests that went from the line of one worker to another
