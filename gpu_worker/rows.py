"""The rows of running requests: what the worker remembers of each from step to step.

Axes: R rows, M tokens of the longest request, T blocks of the longest request.

Numbers lie in columns, one array a field, so that a step gathers those of its rows at once; a row
is an index into them. The rest is an object for each row.

A token is *promised* from the launch of the step that draws it until that step is read: its place
is taken and counted, so that the next step can be launched, and the device alone knows what it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.messages import BlockId, Ending, FinishReason, RequestId, RowStart, Sampling
from gpu_worker.engine import Capacity, EngineError

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

PROMISED = -1  # stands in the place of a token that is not read yet


class TokenCounts:
    """The distinct tokens of one request, and how often each is in its answer."""

    def __init__(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        distinct = dict.fromkeys((*prompt, *answer))
        self._place = {token: place for place, token in enumerate(distinct)}
        self._tokens = np.fromiter(distinct, np.int32, len(distinct))
        self._counts = np.zeros(len(distinct), np.int32)
        self._size = len(distinct)
        for token in answer:
            self.add(token)

    @property
    def tokens(self) -> Int32s:
        return self._tokens[: self._size]

    @property
    def counts(self) -> Int32s:
        return self._counts[: self._size]

    def add(self, token: int) -> None:
        """Count one more token of the answer."""
        place = self._place.setdefault(token, self._size)
        if place == self._size:
            if place == len(self._tokens):
                spare = np.zeros(len(self._tokens) + 64, np.int32)
                self._tokens = np.concatenate((self._tokens, spare))
                self._counts = np.concatenate((self._counts, spare))
            self._tokens[place] = token
            self._size += 1
        self._counts[place] += 1


@dataclass(slots=True)
class Row:
    """What of one row is no number in a column."""

    request_id: RequestId
    index: int  # into the columns
    num_prompt: int
    sampling: Sampling
    ending: Ending
    end_tokens: frozenset[int]
    counts: TokenCounts | None  # only where a penalty needs them
    ended: bool = False  # by itself; its chunks are passed over until it is released
    error: str = ""  # why it ended, until that is told
    last_position: int = (
        -1
    )  # in the answer, of the last token it may have; set when that is promised
    released: bool = False  # its place in the columns may be another's

    @property
    def edits_logits(self) -> bool:
        return bool(self.counts or self.sampling.logit_bias or self.ending.min_tokens)


class Rows:
    """Rows start and are released as plans say; nothing else loses one."""

    def __init__(self, capacity: Capacity, vocab_size: int) -> None:
        self._capacity = capacity
        self._vocab_size = vocab_size
        self._rows: dict[RequestId, Row] = {}
        self._free = list(range(capacity.max_rows))[::-1]
        rows, max_tokens = capacity.max_rows, capacity.max_request_tokens
        max_blocks = -(-max_tokens // capacity.block_size)
        # Large and sparsely used: pages of it that no request reaches are never touched.
        self.tokens = np.zeros((rows, max_tokens), np.int32)  # [R, M] known ones, or PROMISED
        self.blocks = np.zeros((rows, max_blocks), np.int32)  # [R, T]
        self.num_tokens = np.zeros(rows, np.int64)  # known and promised
        self.num_computed = np.zeros(rows, np.int64)  # of them have K and V in the cache
        self.num_blocks = np.zeros(rows, np.int64)
        self.num_prompt = np.zeros(rows, np.int64)
        self.max_tokens = np.zeros(rows, np.int64)  # of the answer
        self.seed = np.zeros(rows, np.uint64)
        self.temperature = np.zeros(rows, np.float32)
        self.top_k = np.zeros(rows, np.int64)
        self.top_p = np.zeros(rows, np.float32)
        self.min_p = np.zeros(rows, np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, request_id: RequestId) -> Row:
        try:
            return self._rows[request_id]
        except KeyError:
            raise EngineError(f"the plan computes {request_id}, which has no row") from None

    def release(self, request_id: RequestId) -> None:
        """Forget a row; one that is not there was forgotten before."""
        if row := self._rows.pop(request_id, None):
            row.released = True
            self._free.append(row.index)

    def start(self, start: RowStart) -> None:
        """Begin a row. One that cannot be computed begins ended, with its error."""
        if start.request_id in self._rows:
            raise EngineError(f"the plan starts {start.request_id} twice")
        if not self._free:
            raise EngineError(f"the plan needs more than {self._capacity.max_rows} rows")
        sampling = start.sampling
        row = Row(
            request_id=start.request_id,
            index=self._free.pop(),
            num_prompt=start.num_prompt,
            sampling=sampling,
            ending=start.ending,
            end_tokens=frozenset(start.ending.end_tokens),
            counts=None,
        )
        self._rows[start.request_id] = row
        if error := self._unfit(start):
            row.ended, row.error = True, error
            return
        if not 0 <= start.num_computed < len(start.tokens):
            raise EngineError(
                f"the plan starts {start.request_id} with {start.num_computed} of "
                f"{len(start.tokens)} tokens computed"
            )
        if _has_penalties(sampling):
            prompt, answer = start.tokens[: start.num_prompt], start.tokens[start.num_prompt :]
            row.counts = TokenCounts(prompt, answer)
        self._fill(row.index, start)

    def append_blocks(self, row: Row, blocks: Sequence[BlockId]) -> None:
        """Extend the row's block table."""
        start = int(self.num_blocks[row.index])
        stop = start + len(blocks)
        if (
            stop > self.blocks.shape[1]
            or not 0 <= min(blocks) <= max(blocks) < self._capacity.num_blocks
        ):
            raise EngineError(
                f"the plan gives {row.request_id} blocks that it cannot have: {blocks}"
            )
        self.blocks[row.index, start:stop] = blocks
        self.num_blocks[row.index] = stop

    def promise(self, rows: Sequence[Row], index: Ints) -> None:
        """A launched step draws one more token for each of these rows, whose indices are given."""
        known = self.num_tokens[index]
        self.tokens[index, known] = PROMISED
        self.num_tokens[index] = known + 1
        positions = known - self.num_prompt[index]
        is_last = positions + 1 >= self.max_tokens[index]
        is_last |= known + 1 >= self.tokens.shape[1]
        for place in is_last.nonzero()[0].tolist():
            rows[place].last_position = int(positions[place])

    def settle(self, row: Row, position: int, token: int) -> FinishReason | None:
        """The token promised at `position` of the answer is read; whether the row ends with it.

        The row may have been released meanwhile: then this is all that is left to say of it.
        """
        if not row.released:
            self.tokens[row.index, row.num_prompt + position] = token
            if row.counts:
                row.counts.add(token)
        finish = None
        if token in row.end_tokens:
            finish = FinishReason.STOP
        elif position == row.last_position:
            finish = FinishReason.LENGTH
        row.ended = finish is not None
        return finish

    def _fill(self, index: int, start: RowStart) -> None:
        sampling = start.sampling
        self.tokens[index, : len(start.tokens)] = start.tokens
        self.num_tokens[index] = len(start.tokens)
        self.num_computed[index] = start.num_computed
        self.num_blocks[index] = 0
        self.num_prompt[index] = start.num_prompt
        self.max_tokens[index] = start.ending.max_tokens
        self.seed[index] = sampling.seed
        self.temperature[index] = sampling.temperature
        self.top_k[index] = min(sampling.top_k, self._vocab_size)
        self.top_p[index] = sampling.top_p
        self.min_p[index] = sampling.min_p

    def _unfit(self, start: RowStart) -> str:
        """Why this row alone cannot be computed; gateways refuse such requests before."""
        longest = self._capacity.max_request_tokens
        if not 0 < len(start.tokens) < longest:
            return f"{len(start.tokens)} tokens, and a request has 1 to {longest} with its answer"
        biased = [token for token, _ in start.sampling.logit_bias]
        for tokens in (start.tokens, biased, start.ending.end_tokens):
            if tokens and not 0 <= min(tokens) <= max(tokens) < self._vocab_size:
                return f"a token outside the vocabulary of {self._vocab_size}"
        return ""


def _has_penalties(sampling: Sampling) -> bool:
    additive = sampling.presence_penalty or sampling.frequency_penalty
    return bool(additive) or sampling.repetition_penalty != 1.0
