"""Tiny engines on a device that is late, with graphs or without."""

from dataclasses import dataclass

from gpu_worker.buckets import graph_shapes
from gpu_worker.device_processor import DeviceProcessor
from gpu_worker.engine import Capacity, no_progress
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Llama
from gpu_worker.sampling_ops import SamplingOps, torch_sampling_ops
from tests.gpu_worker.deferred import DeferredStream


@dataclass
class OnDevice:
    """Makes the processor of one engine; see `tiny.make_engine`."""

    late: bool = True
    graph_tokens: int = 0  # of the largest step that has a graph; 0: none has
    sampling_ops: SamplingOps | None = None

    def __call__(self, model: Llama, cache: KVCache, capacity: Capacity) -> DeviceProcessor:
        self.stream = DeferredStream(late=self.late)
        ops = self.sampling_ops or torch_sampling_ops()
        processor = DeviceProcessor(model, cache, capacity, self.stream, ops)
        if self.graph_tokens:
            sizes = capacity.max_rows, capacity.max_request_tokens, capacity.block_size
            shapes = graph_shapes(self.graph_tokens, *sizes)
            processor.graphs.capture(shapes, lambda: True, no_progress)
        return processor
