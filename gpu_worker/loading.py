"""From settings to an engine that is ready: device, weights, a measured step, the cache."""

from dataclasses import replace
from pathlib import Path

import torch

from common.config import WorkerSettings
from common.messages import BlockId, Chunk, Ending, RequestId, RowStart, Sampling, StepPlan
from common.model_files import ModelFiles, ModelFilesError, locate
from gpu_worker import memory
from gpu_worker.engine import Capacity, EngineError, ModelError, Progress, no_progress
from gpu_worker.kv_cache import GIB, KVCache, block_bytes, fit_blocks
from gpu_worker.llama import Llama
from gpu_worker.model_engine import ModelEngine
from gpu_worker.ops import Ops, choose_ops
from gpu_worker.weights import load_model, open_weights

CPU_CACHE_BYTES = GIB  # where settings name no size


def load_engine(settings: WorkerSettings, progress: Progress = no_progress) -> ModelEngine:
    """Load the model and warm up. Raises EngineError with one line that says what to change."""
    progress("finding the model", 0.0)
    try:
        files = locate(settings.model, Path(settings.data_dir))
    except ModelFilesError as error:
        raise ModelError(str(error)) from error
    device = _device(settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    dtype = torch.bfloat16 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    ops = choose_ops(device, settings.kernels)
    longest = _longest_request(settings, files)
    model = load_model(open_weights(files.path), ops, dtype, device, longest, progress)
    progress("warming up", 0.0)
    capacity = Capacity(
        model=settings.served_model_name or files.name,
        device=_describe(device, ops),
        num_blocks=0,  # known when a step has been measured
        block_size=settings.block_size,
        max_request_tokens=longest,
        max_step_tokens=settings.max_step_tokens,
        max_rows=settings.max_rows,
    )
    step_bytes = _measure_step(model, capacity, dtype, device)
    num_blocks = _num_blocks(settings, model, dtype, device, step_bytes)
    capacity = replace(
        capacity,
        num_blocks=num_blocks,
        max_request_tokens=min(longest, num_blocks * settings.block_size),
    )
    cache = KVCache.allocate(model.config, num_blocks, settings.block_size, dtype, device)
    progress("warming up", 1.0)
    return ModelEngine(model, cache, capacity)


def _device(settings: WorkerSettings) -> torch.device:
    """The device that backend and device name together."""
    has_gpu = torch.cuda.is_available()
    wants_gpu = settings.backend == "triton" or settings.device not in {"auto", "cpu"}
    if wants_gpu and not has_gpu:
        raise EngineError("there is no GPU that torch can use: take --backend cpu --device auto")
    on_gpu = wants_gpu or (settings.backend == settings.device == "auto" and has_gpu)
    if on_gpu and "cpu" in {settings.backend, settings.device}:
        raise EngineError(
            f"--backend {settings.backend} and --device {settings.device} exclude each other"
        )
    try:
        return torch.device(
            settings.device if settings.device != "auto" else "cuda" if on_gpu else "cpu"
        )
    except RuntimeError:
        raise EngineError(f"--device {settings.device} is no device") from None


def _describe(device: torch.device, ops: Ops) -> str:
    if device.type == "cpu":
        return f"cpu ({ops.name}, {torch.get_num_threads()} threads)"
    return f"{torch.cuda.get_device_name(device)} ({ops.name})"


def _longest_request(settings: WorkerSettings, files: ModelFiles) -> int:
    allowed = files.context_length
    if settings.max_model_len > allowed:
        raise EngineError(
            f"--max-model-len {settings.max_model_len}: the model is made for {allowed} tokens"
        )
    return settings.max_model_len or allowed


def _num_blocks(
    settings: WorkerSettings,
    model: Llama,
    dtype: torch.dtype,
    device: torch.device,
    step_bytes: int,
) -> int:
    free = memory.free_bytes(device) - step_bytes
    if device.type != "cpu":
        total: int = torch.cuda.mem_get_info(device)[1]
        free -= int(total * (1 - settings.gpu_memory_share))
    default = CPU_CACHE_BYTES if device.type == "cpu" else free
    each = block_bytes(model.config, settings.block_size, dtype)
    return fit_blocks(settings.num_blocks, settings.kv_bytes or default, each, free)


def _measure_step(
    model: Llama, capacity: Capacity, dtype: torch.dtype, device: torch.device
) -> int:
    """Run the largest step that can occur; the memory that it took and gave back. Warms up, too."""
    plan = largest_step(capacity)
    num_blocks = sum(len(chunk.new_blocks) for chunk in plan.chunks)
    cache = KVCache.allocate(model.config, num_blocks, capacity.block_size, dtype, device)
    before = memory.resident_bytes(device)
    ModelEngine(model, cache, replace(capacity, num_blocks=num_blocks)).execute(plan)
    return max(0, memory.peak_bytes(device) - before)


def largest_step(capacity: Capacity) -> StepPlan:
    """As many rows as there may be, all sampling in the costliest way; the rest is one prompt."""
    num_rows = min(capacity.max_rows, capacity.max_step_tokens)
    longest = min(capacity.max_step_tokens - num_rows + 1, capacity.max_request_tokens - 1)
    counts = [max(1, longest)] + [1] * (num_rows - 1)
    sampling = Sampling(seed=0, temperature=1.0, top_p=0.9, repetition_penalty=1.1)
    admitted, chunks, block = [], [], 0
    for row, count in enumerate(counts):
        request_id = RequestId(f"warm-up.{row}")
        stop = block + -(-count // capacity.block_size)
        blocks = tuple(BlockId(number) for number in range(block, stop))
        block = stop
        ending = Ending(max_tokens=1)
        admitted.append(RowStart(request_id, (0,) * count, count, sampling, ending, ()))
        chunks.append(Chunk(request_id, 0, count, blocks, samples=True))
    return StepPlan(step=1, admitted=tuple(admitted), chunks=tuple(chunks))
