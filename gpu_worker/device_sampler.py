"""Logits to tokens on a device; `sampler.py` says in which order what is done to them.

Axes: R rows that sample, V vocabulary.

The newest token of each row stays here, so that the next step can be launched before the host has
read it: as its input, and as one more token of the answer for its penalties.
"""

import torch
from torch import Tensor

from gpu_worker.device import Stream, send
from gpu_worker.edits import Array, Edits
from gpu_worker.fields import Fields
from gpu_worker.sampling_ops import SamplingOps


class DeviceSampler:
    """`send_edits` launches a copy; the other methods are work, to be called within `run`."""

    def __init__(self, stream: Stream, ops: SamplingOps, max_rows: int) -> None:
        self._stream = stream
        self._ops = ops
        self._newest = stream.empty(max_rows, torch.int32)
        self._none = stream.empty(max_rows, torch.int32)
        stream.run(self._clear)

    def send_edits(self, edits: Edits[Array] | None) -> Edits[Tensor] | None:
        return None if edits is None else Edits(*send(self._stream, list(vars(edits).values())))

    def tokens(self, tokens: Tensor, source: Tensor) -> Tensor:
        """[N] all tokens of a step, where the host knows some only."""
        return self._ops.pick_tokens(tokens, source, self._newest)

    def draw(
        self,
        logits: Tensor,
        fields: Fields[Tensor],
        edits: Edits[Tensor] | None,
        draws: bool,
    ) -> tuple[Tensor, Tensor]:
        """The next token of each row [R], and which rows failed [R]; `logits` is overwritten."""
        if edits is not None:
            promised = self.tokens(self._none[: len(logits)], fields.newest)
            self._ops.edit_logits(
                logits,
                edits.penalised_starts,
                edits.penalised,
                edits.counts,
                edits.repetition,
                edits.presence,
                edits.frequency,
                promised,
                edits.added_starts,
                edits.added,
                edits.addend,
            )
        tokens, failed = self._ops.sample(
            logits,
            fields.seed,
            fields.position,
            fields.temperature,
            fields.top_k,
            fields.top_p,
            fields.min_p,
            draws,
        )
        self._ops.keep_tokens(tokens, fields.row, self._newest)
        return tokens, failed

    def _clear(self) -> None:
        self._newest.zero_()
        self._none.fill_(-1)
