"""Random models of any size, made on the device that computes them, and engines for them."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.buckets import graph_shapes
from gpu_worker.device import Stream
from gpu_worker.device_processor import DeviceProcessor
from gpu_worker.engine import Capacity, no_progress
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Layer, Llama
from gpu_worker.model_config import ModelConfig, plain_frequencies, rotary_table
from gpu_worker.model_engine import ModelEngine
from gpu_worker.ops import Ops
from gpu_worker.processor import HostProcessor
from tests.gpu.machine import Machine

Take = Callable[..., Tensor]  # (name, *shape) to a weight
CPU = torch.device("cpu")
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    ffn_width: int
    heads: int
    groups: int
    vocab: int

    def config(self) -> ModelConfig:
        size = self.width // self.heads
        return ModelConfig(
            num_layers=self.layers,
            width=self.width,
            ffn_width=self.ffn_width,
            num_heads=self.heads,
            num_groups=self.groups,
            head_size=size,
            vocab_size=self.vocab,
            norm_eps=1e-5,
            frequencies=tuple(plain_frequencies(500_000.0, size).tolist()),
            windows=(0,) * self.layers,
            tied=False,
        )


LLAMA_8B = Sizes(32, 4096, 14336, 32, 8, 128_256)
SMALL = Sizes(8, 1024, 2816, 16, 4, 32_000)
TINY = Sizes(2, 64, 96, 4, 2, 320)


def drawn(dtype: torch.dtype, device: torch.device) -> Take:
    """Weights by their names, the same each time; drawn on `device`, so that there is no copy."""

    def take(name: str, *shape: int) -> Tensor:
        generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
        weight = torch.empty(shape, dtype=dtype, device=device)
        if len(shape) == 1:
            return weight.normal_(1.0, 0.1, generator=generator)
        return weight.normal_(0.0, shape[1] ** -0.5, generator=generator)

    return take


def assemble(config: ModelConfig, ops: Ops, take: Take, num_positions: int) -> Llama:
    heads = config.num_heads * config.head_size
    qkv = heads + 2 * config.num_groups * config.head_size
    width, ffn_width = config.width, config.ffn_width

    def linear(name: str, num_out: int, num_in: int) -> Callable[[Tensor], Tensor]:
        return ops.pack(take(name, num_out, num_in), None)

    layers = [
        Layer(
            input_norm=take(f"{index}.input_norm", width),
            qkv=linear(f"{index}.qkv", qkv, width),
            q_norm=None,
            k_norm=None,
            out=linear(f"{index}.out", width, heads),
            ffn_norm=take(f"{index}.ffn_norm", width),
            gate_up=linear(f"{index}.gate_up", 2 * ffn_width, width),
            down=linear(f"{index}.down", width, ffn_width),
            window=config.windows[index],
        )
        for index in range(config.num_layers)
    ]
    embedding = take("embedding", config.vocab_size, width)
    cos_sin = rotary_table(config.frequencies, num_positions).to(embedding.device)
    head = linear("head", config.vocab_size, width)
    return Llama(config, ops, embedding, tuple(layers), take("norm", width), head, cos_sin)


def copied(take: Take, device: torch.device, dtype: torch.dtype) -> Take:
    """The same weights on another device, and of another type."""
    return lambda name, *shape: take(name, *shape).to(device, dtype)


@dataclass(frozen=True)
class Room:
    """What an engine is to hold."""

    num_blocks: int
    max_rows: int
    max_step_tokens: int
    num_host_blocks: int = 0

    def capacity(self, model: Llama) -> Capacity:
        longest = min(len(model.cos_sin), self.num_blocks * BLOCK_SIZE)
        return Capacity(
            model="random",
            device=str(model.embedding.device),
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_request_tokens=longest,
            max_step_tokens=self.max_step_tokens,
            max_rows=self.max_rows,
            num_host_blocks=self.num_host_blocks,
        )


def make_cache(model: Llama, room: Room) -> KVCache:
    device, dtype = model.embedding.device, model.embedding.dtype
    return KVCache.allocate(model.config, room.num_blocks, BLOCK_SIZE, dtype, device)


def host_engine(model: Llama, room: Room) -> ModelEngine:
    return ModelEngine(HostProcessor(model, make_cache(model, room)), room.capacity(model))


def device_engine(
    machine: Machine,
    model: Llama,
    room: Room,
    graph_tokens: int = 0,
    stream: Stream | None = None,
) -> ModelEngine:
    """With graphs of steps up to `graph_tokens`; 0: none."""
    capacity = room.capacity(model)
    cache = make_cache(model, room)
    stream = stream or machine.stream()
    machine.synchronize()  # what made weights and cache is done on another stream
    processor = DeviceProcessor(model, cache, capacity, stream, machine.sampling_ops())
    if graph_tokens:
        sizes = capacity.max_rows, capacity.max_request_tokens, BLOCK_SIZE
        shapes = graph_shapes(min(graph_tokens, capacity.max_step_tokens), *sizes)
        processor.graphs.capture(shapes, lambda: True, no_progress)
    return ModelEngine(processor, capacity)
