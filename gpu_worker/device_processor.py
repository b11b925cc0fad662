"""Computes batches on a device: `launch` returns when all is launched, and nothing waits for it.

Axes: N tokens of the step, R rows that sample, E model width.

Of a step, the host writes all numbers into one run of pinned memory, which one copy brings to the
device; then come the layers, as a graph or kernel by kernel; then the logits and the draw; and two
small copies of what was drawn, into pinned memory too. Steps follow one another on one stream, so
that one buffer on the device does for all. What the host writes and reads there are several of, one
for each step that may be on its way.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from gpu_worker.batch import Batch
from gpu_worker.device import Event, Graph, Stream, Tensors, copy, send
from gpu_worker.device_sampler import DeviceSampler
from gpu_worker.edits import Edits
from gpu_worker.engine import Capacity
from gpu_worker.fields import Array, Fields, Shape, clear, device_fields, host_fields, num_bytes
from gpu_worker.graphs import Graphs
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Llama
from gpu_worker.processor import Bools, Ints
from gpu_worker.sampling_ops import SamplingOps

NUM_SLOTS = 2  # steps that are launched and not read


@dataclass
class _Slot:
    """Host memory of one step on its way."""

    inputs: Tensor  # [bytes] uint8, pinned
    tokens: Tensor  # [max_rows] int64, pinned
    failed: Tensor  # [max_rows] bool, pinned
    done: Event | None = None  # with the step that used it last


class DeviceProcessor:
    def __init__(
        self,
        model: Llama,
        cache: KVCache,
        capacity: Capacity,
        stream: Stream,
        sampling_ops: SamplingOps,
    ) -> None:
        self.model = model
        self.cache = cache
        self._stream = stream
        self._sampler = DeviceSampler(stream, sampling_ops, capacity.max_rows)
        size = num_bytes(_largest(capacity))
        self._memory = stream.empty(size, torch.uint8)
        self._slots = [_make_slot(stream, size, capacity.max_rows) for _ in range(NUM_SLOTS)]
        self._next = 0
        self._on_device = lru_cache(maxsize=1024)(partial(device_fields, self._memory))
        self.graphs = Graphs(stream, self._captured)

    def launch(self, batch: Batch) -> "_Drawn":
        slot = self._take_slot()
        graph, shape = None, batch.shape
        if found := self.graphs.find(shape):
            padded, graph = found
            shape = replace(padded, num_sampling=shape.num_sampling)
        fields = host_fields(slot.inputs.numpy(), shape)
        batch.fill(fields)
        edits = self._sampler.send_edits(batch.edits)
        self._send(slot, num_bytes(shape))
        on_device = self._on_device(shape)
        draw = partial(self._draw, slot, on_device, edits, bool(fields.temperature.any()))
        self._stream.run(partial(self._work, graph, on_device, draw))
        slot.done = self._stream.record()
        return _Drawn(slot, slot.done, len(batch.sampling))

    def try_shape(self, shape: Shape, *, draws: bool, edits: Edits[Array] | None = None) -> None:
        """Compute a step of padding, kernel by kernel, and wait for it.

        It compiles what steps of this shape need, and takes the memory that they take: both depend
        on shapes alone. `edits` are of R rows.
        """
        self._stream.synchronize()
        slot = self._slots[0]
        clear(host_fields(slot.inputs.numpy(), shape))
        on_device, sent = self._on_device(shape), self._sampler.send_edits(edits)
        self._send(slot, num_bytes(shape))
        draw = partial(self._draw, slot, on_device, sent, draws)
        self._stream.run(partial(self._work, None, on_device, draw))
        self._stream.synchronize()

    def block_copy(self, source: Tensor, target: Tensor, pairs: Tensor) -> None:
        """Launch a copy of blocks, behind all that was launched before."""
        [on_device] = send(self._stream, [pairs.numpy()])
        self._stream.run(partial(self.model.ops.block_copy, source, target, on_device))

    def synchronize(self) -> None:
        self._stream.synchronize()

    def _take_slot(self) -> _Slot:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % NUM_SLOTS
        if slot.done:
            slot.done.synchronize()
        return slot

    def _send(self, slot: _Slot, size: int) -> None:
        target, source = self._memory[:size], slot.inputs[:size]
        self._stream.run(lambda: copy(target, source))

    def _work(
        self, graph: Graph | None, fields: Fields[Tensor], draw: Callable[[Tensor], None]
    ) -> None:
        """All of a step. It may run later than it is launched: what it reads does not change."""
        if graph:
            graph.replay()
            x, residual = graph.outputs
        else:
            x, residual = self._hidden(fields)
        if len(fields.last):
            draw(self.model.logits(x, residual, fields.last))

    def _hidden(self, fields: Fields[Tensor]) -> Tensors:
        inputs = Inputs(
            tokens=self._sampler.tokens(fields.tokens, fields.source),
            positions=fields.positions,
            slot_mapping=fields.slot_mapping,
            block_tables=fields.block_tables,
            cu_seqlens=fields.cu_seqlens,
            lengths=fields.lengths,
            last=fields.last,
        )
        return self.model.hidden(inputs, self.cache)  # [N, E] each

    def _draw(
        self,
        slot: _Slot,
        fields: Fields[Tensor],
        edits: Edits[Tensor] | None,
        draws: bool,
        logits: Tensor,
    ) -> None:
        tokens, failed = self._sampler.draw(logits, fields, edits, draws)
        copy(slot.tokens[: len(tokens)], tokens)
        copy(slot.failed[: len(failed)], failed)

    def _captured(self, shape: Shape) -> Callable[[], Tensors]:
        """The layers over the memory of a step of that shape, which is padding for now.

        Where its numbers lie does not depend on R.
        """
        slot = self._take_slot()
        clear(host_fields(slot.inputs.numpy(), shape))
        self._send(slot, num_bytes(shape))
        self._stream.synchronize()
        return partial(self._hidden, self._on_device(shape))


@dataclass(frozen=True, slots=True)
class _Drawn:
    slot: _Slot
    done: Event
    count: int  # R
    is_done: bool = False

    def wait(self) -> None:
        self.done.synchronize()

    def read(self) -> tuple[Ints, Bools]:
        assert self.slot.done is self.done, "another step was launched into the same memory"
        self.done.synchronize()
        tokens, failed = self.slot.tokens.numpy(), self.slot.failed.numpy()
        return tokens[: self.count].copy(), failed[: self.count].copy()


def _largest(capacity: Capacity) -> Shape:
    """A step that no other is larger than in any array, padding included."""
    num_rows = capacity.max_rows
    width = -(-capacity.max_request_tokens // capacity.block_size)
    return Shape(max(capacity.max_step_tokens, num_rows), num_rows, num_rows, width)


def _make_slot(stream: Stream, size: int, max_rows: int) -> _Slot:
    return _Slot(
        inputs=stream.pinned(size, torch.uint8),
        tokens=stream.pinned(max_rows, torch.int64),
        failed=stream.pinned(max_rows, torch.bool),
    )
