"""An engine that computes nothing: steps take the time that a cost model says, tokens are known.

For benchmarks of the control plane, and for failure tests whose ledger must know the truth: token
`position` of an answer is `truth(prompt, position)`, whoever computes it and however often.
"""

import time
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.config import WorkerSettings
from common.messages import (
    BlockId,
    Chunk,
    FinishReason,
    HostBlockId,
    RequestId,
    RowStart,
    Sampled,
    StepPlan,
    StepResult,
)
from gpu_worker.engine import Capacity, Computed

FIRST_TOKEN, NUM_TOKENS = 1000, 8192  # ordinary words in every vocabulary that we know
DEFAULT_BLOCKS, DEFAULT_LENGTH, DEFAULT_STEP_TOKENS = 65_536, 8192, 512
TOKEN_BYTES = 23_040  # K and V of the embedded model in bfloat16, by which swap_bytes are divided
MASK = (1 << 64) - 1


def fingerprint(prompt: Sequence[int]) -> int:
    return zlib.crc32(array("q", prompt).tobytes())


def truth(prompt: Sequence[int], position: int) -> int:
    """The token at `position` of the answer to `prompt`."""
    return _token(fingerprint(prompt), position)


def _token(seed: int, position: int) -> int:
    """Splitmix64 of both: neighbours have nothing in common."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return FIRST_TOKEN + (x ^ (x >> 31)) % NUM_TOKENS


@dataclass(slots=True)
class _Row:
    seed: int
    num_tokens: int  # known here, prompt and answer
    num_prompt: int
    max_tokens: int
    num_computed: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    has_ended: bool = False


class SimulatedEngine:
    def __init__(self, capacity: Capacity, step_seconds: float, token_seconds: float) -> None:
        self._capacity = capacity
        self.step_seconds = step_seconds
        self.token_seconds = token_seconds
        self._rows: dict[RequestId, _Row] = {}
        self._swapped: set[HostBlockId] = set()  # host blocks that hold something

    @classmethod
    def from_settings(cls, settings: WorkerSettings, model: str) -> "SimulatedEngine":
        capacity = Capacity(
            model=model,
            device="simulated",
            num_blocks=settings.num_blocks or DEFAULT_BLOCKS,
            block_size=settings.block_size,
            max_request_tokens=settings.max_model_len or DEFAULT_LENGTH,
            max_step_tokens=settings.max_step_tokens or DEFAULT_STEP_TOKENS,
            max_rows=settings.max_rows,
            num_host_blocks=settings.swap_bytes // (settings.block_size * TOKEN_BYTES),
        )
        return cls(capacity, settings.step_ms / 1e3, settings.token_us / 1e6)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, plan: StepPlan) -> Computed:
        return Computed(self.execute(plan))

    def execute(self, plan: StepPlan) -> StepResult:
        start = time.monotonic()
        for request_id in plan.released:
            del self._rows[request_id]
        self._swap(plan)
        for row in plan.admitted:
            self._admit(row)
        sampled = [token for chunk in plan.chunks if (token := self._compute(chunk))]
        seconds = self.step_seconds + self.token_seconds * plan.num_tokens if plan.chunks else 0.0
        time.sleep(max(0.0, start + seconds - time.monotonic()))
        return StepResult(plan.step, tuple(sampled), time.monotonic() - start)

    def reset(self) -> None:
        self._rows.clear()
        self._swapped.clear()

    def _swap(self, plan: StepPlan) -> None:
        for block, host_block in (*plan.swap_out, *plan.swap_in):
            assert 0 <= block < self._capacity.num_blocks, f"there is no block {block}"
            assert 0 <= host_block < self._capacity.num_host_blocks, f"no host block {host_block}"
        self._swapped.update(host_block for _, host_block in plan.swap_out)
        for _, host_block in plan.swap_in:
            assert host_block in self._swapped, f"nothing was swapped out to {host_block}"

    def _admit(self, row: RowStart) -> None:
        assert row.request_id not in self._rows, f"{row.request_id} is here already"
        assert 0 <= row.num_computed < len(row.tokens), f"{row.num_computed} tokens computed"
        self._rows[row.request_id] = _Row(
            seed=fingerprint(row.tokens[: row.num_prompt]),
            num_tokens=len(row.tokens),
            num_prompt=row.num_prompt,
            max_tokens=row.ending.max_tokens,
            num_computed=row.num_computed,
        )

    def _compute(self, chunk: Chunk) -> Sampled | None:
        """Check the plan as a real cache would not; then the token, if the chunk samples."""
        row = self._rows[chunk.request_id]
        if row.has_ended:
            return None
        row.blocks += chunk.new_blocks
        stop = chunk.start + chunk.count
        assert chunk.start == row.num_computed, f"{chunk} after {row.num_computed} tokens"
        assert stop <= row.num_tokens, f"{chunk} beyond {row.num_tokens} known tokens"
        assert stop <= len(row.blocks) * self._capacity.block_size, f"{chunk} lacks blocks"
        row.num_computed = stop
        if not chunk.samples:
            return None
        assert stop == row.num_tokens, f"{chunk} samples before its last token"
        position = row.num_tokens - row.num_prompt
        row.num_tokens += 1
        row.has_ended = position + 1 >= row.max_tokens
        finish = FinishReason.LENGTH if row.has_ended else None
        return Sampled(chunk.request_id, position, _token(row.seed, position), finish)
