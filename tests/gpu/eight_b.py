"""A model of Llama 3.1 8B's shape, made ready as a worker makes it ready; and the least time of a
step of it.

Weights are random, and there is one copy of them.
"""

import time
from dataclasses import replace

import torch

from common.config import WorkerSettings
from gpu_worker.device import Stream
from gpu_worker.device_preparation import DevicePreparation
from gpu_worker.device_processor import DeviceProcessor
from gpu_worker.engine import no_progress
from gpu_worker.llama import Llama
from gpu_worker.memory import free_bytes
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_engine import ModelEngine
from gpu_worker.parallel import ALONE
from tests.gpu.machine import Machine
from tests.gpu.models import LLAMA_8B, TINY, Room, assemble, drawn, make_cache
from tests.gpu.report import Report
from tests.gpu_worker import attention_costs
from tests.gpu_worker.kernel_costs import Cost, layer_costs, sampling_costs

LONGEST = 8192  # tokens of a request
WARM_UP_SECONDS = 20.0


def make_model(machine: Machine) -> Llama:
    take = drawn(machine.pick(torch.bfloat16, torch.float32), machine.device)
    config = machine.pick(LLAMA_8B, TINY).config()
    return assemble(config, machine.ops(), take, machine.pick(LONGEST, 512))


def make_room(machine: Machine) -> Room:
    """For 256 rows of 1,100 tokens."""
    return machine.pick(Room(256 * 72, 256, 2048), Room(64, 4, 32))


def prepare(
    machine: Machine, report: Report, model: Llama, room: Room, stream: Stream
) -> ModelEngine:
    """An engine with graphs, as `loading` makes one; tells what that takes."""
    settings = WorkerSettings(
        warm_up_seconds=WARM_UP_SECONDS, graph_tokens=machine.pick(512, 8), cuda_graphs="auto"
    )
    preparation = DevicePreparation(
        model, settings, ALONE, machine.device, stream, machine.sampling_ops(), no_progress
    )
    capacity = room.capacity(model)
    began = time.monotonic()
    step_bytes = preparation.measure(replace(capacity, num_blocks=0))
    measured = time.monotonic()
    cache = make_cache(model, room)
    for each in (cache.k, cache.v):  # of zeros, all rows would be alike
        each.normal_()
    machine.synchronize()
    before = free_bytes(machine.device)
    captured = time.monotonic()
    processor = preparation.processor(cache, capacity)
    report.row(
        warm_up_s=measured - began,
        predicted_mib=step_bytes / (1 << 20),
        graphs=len(processor.graphs),
        capture_s=time.monotonic() - captured,
        graphs_mib=max(0, before - free_bytes(machine.device)) / (1 << 20),
    )
    return ModelEngine(processor, capacity)


def without_graphs(machine: Machine, engine: ModelEngine) -> ModelEngine:
    """Over the same weights and the same cache."""
    with_graphs = engine._processor
    processor = DeviceProcessor(
        with_graphs.model,
        with_graphs.cache,
        engine.capacity,
        machine.stream(),
        machine.sampling_ops(),
    )
    return ModelEngine(processor, engine.capacity)


# --- The least that a step can take -----------------------------------------------------------


def linear_weights(config: ModelConfig) -> int:
    """Numbers of all linear layers but the head."""
    heads = config.num_heads + 2 * config.num_groups
    attention = config.width * config.head_size * (heads + config.num_heads)
    return config.num_layers * (attention + 3 * config.width * config.ffn_width)


def decode_bytes(config: ModelConfig, batch: int, context: int) -> int:
    """Read by a step of one token for each row: weights, and keys and values."""
    weights = linear_weights(config) + config.width * config.vocab_size
    cached = 2 * config.num_layers * config.num_groups * config.head_size * batch * context
    return 2 * (weights + cached)


def decode_flops(config: ModelConfig, batch: int, context: int) -> int:
    weights = linear_weights(config) + config.width * config.vocab_size
    heads = config.num_layers * config.num_heads * config.head_size
    return 2 * batch * weights + 4 * batch * context * heads


def prompt_flops(config: ModelConfig, rows: int) -> int:
    """A prompt that begins with these rows, of which the last samples."""
    heads = config.num_layers * config.num_heads * config.head_size
    seen = rows * (rows + 1) // 2
    head = 2 * config.width * config.vocab_size
    return 2 * rows * linear_weights(config) + 4 * heads * seen + head


def predicted_decode_us(batch: int, context: int) -> float:
    """As docs/kernels.md predicts each kernel; linear layers at 0.85 of their floor's speed."""
    config = LLAMA_8B.config()
    layer = {cost.name: cost.predicted_us for cost in layer_costs(batch)}
    sampler = {cost.name: cost.predicted_us for cost in sampling_costs(batch)}
    attention = attention_costs.decode(batch, context, 2)[1].predicted_us
    width, heads = config.width, config.num_heads * config.head_size
    qkv = heads + 2 * config.num_groups * config.head_size
    linears = [(qkv, width), (width, heads), (2 * config.ffn_width, width)]
    linears += [(width, config.ffn_width)]
    one_layer = 2 * layer["rms_norm with residual"] + layer["rotary_kv_write"] + attention
    one_layer += layer["silu_mul, gelu_mul"] + sum(_linear_us(batch, *each) for each in linears)
    widened = Cost("logits in float32", batch, 6 * batch * config.vocab_size, 0).predicted_us
    ends = layer["embed_norm"] - layer["rms_norm with residual"] + sampler["last_norm"]
    ends += _linear_us(batch, config.vocab_size, width) + widened + sampler["sample, no filter"]
    ends += sampler["pick_tokens"] + sampler["keep_tokens"]
    return config.num_layers * one_layer + ends


def _linear_us(batch: int, num_out: int, num_in: int) -> float:
    num_bytes = 2 * (num_out * num_in + batch * (num_out + num_in))
    return Cost("linear", batch, num_bytes, 2 * batch * num_out * num_in).predicted_us
