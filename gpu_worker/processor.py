"""What computes batches: on the host at once (here), or on a device (`device_processor.py`).

Axes: R rows that sample.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.batch import Batch
from gpu_worker.fields import Array, Fields
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Llama
from gpu_worker.ops import BlockCopy
from gpu_worker.sampler import SamplingColumns, sample

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Drawn(Protocol):
    """The tokens of a batch, on their way."""

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> None:
        """Return when they are drawn; on any thread."""
        ...

    def read(self) -> tuple[Ints, Bools]:
        """The token of each row [R], and which rows failed [R]; waits if need be."""
        ...


class Processor(Protocol):
    @property
    def model(self) -> Llama: ...

    @property
    def cache(self) -> KVCache: ...

    @property
    def block_copy(self) -> BlockCopy:
        """Copies blocks behind all that was launched, and before all that will be."""
        ...

    def launch(self, batch: Batch) -> Drawn:
        """Compute a batch and draw its tokens. At most one other may be unread."""
        ...

    def synchronize(self) -> None:
        """Return when all that was launched is done. Raises what made it fail."""
        ...


@dataclass(frozen=True)
class Known:
    """Tokens that were drawn at once."""

    tokens: Ints
    failed: Bools
    is_done: bool = True

    def wait(self) -> None: ...

    def read(self) -> tuple[Ints, Bools]:
        return self.tokens, self.failed


@dataclass(frozen=True)
class HostProcessor:
    """Computes on the CPU, before `launch` returns: no token is ever promised."""

    model: Llama
    cache: KVCache

    @property
    def block_copy(self) -> BlockCopy:
        return self.model.ops.block_copy

    def launch(self, batch: Batch) -> Known:
        fields = batch.fields()
        assert fields.source.max() < 0, "a step was launched before the one before it was read"
        logits = self.model.forward(host_inputs(fields), self.cache)
        if not batch.sampling:
            return Known(np.zeros(0, np.int64), np.zeros(0, np.bool_))
        columns = SamplingColumns(
            seed=fields.seed.view(np.uint64),
            position=fields.position,
            temperature=fields.temperature,
            top_k=fields.top_k,
            top_p=fields.top_p,
            min_p=fields.min_p,
            edits=batch.edits,
        )
        return Known(*sample(logits, columns))

    def synchronize(self) -> None: ...


def host_inputs(fields: Fields[Array]) -> Inputs:
    """The arrays of a step as the model takes them, where they lie."""
    return Inputs(
        tokens=torch.from_numpy(fields.tokens),
        positions=torch.from_numpy(fields.positions),
        slot_mapping=torch.from_numpy(fields.slot_mapping),
        block_tables=torch.from_numpy(fields.block_tables),
        cu_seqlens=torch.from_numpy(fields.cu_seqlens),
        lengths=torch.from_numpy(fields.lengths),
        last=torch.from_numpy(fields.last),
    )
