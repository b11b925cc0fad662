"""From settings to an engine that is ready: device, weights, a measured step, the cache.

Where several ranks compute the model, all of them do all of this; what depends on free memory is
what the rank with the least of it can have.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from common.config import WorkerSettings
from common.model_files import ModelFiles, ModelFilesError, locate
from gpu_worker import memory
from gpu_worker.backend import check_deterministic, choose_device, choose_ops, describe
from gpu_worker.device_preparation import DevicePreparation
from gpu_worker.engine import Capacity, EngineError, ModelError, Progress, no_progress
from gpu_worker.kv_cache import GIB, KVCache, block_bytes, fit_blocks, fit_host_blocks
from gpu_worker.llama import Llama
from gpu_worker.model_engine import ModelEngine
from gpu_worker.ops import Ops
from gpu_worker.parallel import ALONE, Group
from gpu_worker.preparation import HostPreparation, Preparation
from gpu_worker.shard import Shard, check_split
from gpu_worker.weight_file import WeightFile
from gpu_worker.weights import load_model, open_weights, weight_bytes

# Of all ranks, where settings name no size. With the least, and the embedded model, the whole
# system stays below 1.2 GB.
LEAST_CPU_CACHE_BYTES, MOST_CPU_CACHE_BYTES = 448 << 20, GIB
# Where settings name no bound. On a CPU it is what keeps the others' gaps short while a long prompt
# comes: as many tokens as a step computes within STEP_SECONDS, as a trial says. Behind a long
# context they take longer, up to twice as long.
GPU_STEP_TOKENS = 2048
STEP_SECONDS = 0.06


Meet = Callable[[torch.device], Group]  # waits for the other ranks


def load_engine(
    settings: WorkerSettings,
    progress: Progress = no_progress,
    meet: Meet = lambda _device: ALONE,
) -> ModelEngine:
    """Load the model, or this rank's part, and warm up.

    `meet` is called when all is checked that can be without the other ranks. Raises EngineError
    with one line that says what to change.
    """
    progress("finding the model", 0.0)
    try:
        files = locate(settings.model, Path(settings.data_dir))
    except ModelFilesError as error:
        raise ModelError(str(error)) from error
    device = choose_device(settings)
    if device.type != "cpu" and not settings.max_step_tokens:
        settings = replace(settings, max_step_tokens=GPU_STEP_TOKENS)
    ops = choose_ops(settings, device)
    dtype = torch.bfloat16 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    longest = _longest_request(settings, files)
    weights = open_weights(files.path)
    check_deterministic(settings, ops, weights.config, dtype)
    _check_room(weights, ops, dtype, device, Shard(size=settings.tensor_parallel))
    group = meet(device)
    model = load_model(weights, ops, dtype, device, longest, progress, group)
    progress("warming up", 0.0)
    preparation = _preparation(model, settings, group, device, progress)
    capacity = Capacity(
        model=settings.served_model_name or files.name,
        device=describe(device, ops, settings.tensor_parallel),
        num_blocks=0,
        block_size=settings.block_size,
        max_request_tokens=longest,
        max_step_tokens=settings.max_step_tokens
        or group.smallest(HostPreparation(model).step_tokens(STEP_SECONDS)),
        max_rows=settings.max_rows,
    )
    step_bytes = preparation.measure(capacity)
    memory.give_back()
    num_blocks = group.smallest(_num_blocks(settings, model, dtype, device, longest, step_bytes))
    cache = KVCache.allocate(model.config, num_blocks, settings.block_size, dtype, device)
    capacity = replace(
        capacity,
        num_blocks=num_blocks,
        max_request_tokens=min(longest, num_blocks * settings.block_size),
        num_host_blocks=group.smallest(_num_host_blocks(settings, model, dtype)),
    )
    processor = preparation.processor(cache, capacity)
    progress("warming up", 1.0)
    return ModelEngine(processor, capacity)


def _preparation(
    model: Llama,
    settings: WorkerSettings,
    group: Group,
    device: torch.device,
    progress: Progress,
) -> Preparation:
    if device.type == "cpu":
        return HostPreparation(model)
    return DevicePreparation.on_gpu(model, settings, group, device, progress)


def _longest_request(settings: WorkerSettings, files: ModelFiles) -> int:
    allowed = files.context_length
    if settings.max_model_len > allowed:
        raise EngineError(
            f"--max-model-len {settings.max_model_len}: the model is made for {allowed} tokens"
        )
    return settings.max_model_len or allowed


def _check_room(
    weights: WeightFile, ops: Ops, dtype: torch.dtype, device: torch.device, shard: Shard
) -> None:
    """Rather one line now than to be killed half-way by a machine that ran out of memory."""
    check_split(weights.config, shard.size)
    needed = weight_bytes(weights, ops, dtype, shard)
    free = _free_bytes(device, shard.size)
    if needed > free:
        raise EngineError(
            f"the weights take {needed / GIB:.2f} GiB as {str(dtype).removeprefix('torch.')}, and "
            f"{max(0, free) / GIB:.2f} GiB are free: take a smaller model or dtype"
        )


def _num_blocks(
    settings: WorkerSettings,
    model: Llama,
    dtype: torch.dtype,
    device: torch.device,
    longest: int,
    step_bytes: int,
) -> int:
    num_ranks = settings.tensor_parallel
    free = _free_bytes(device, num_ranks) - step_bytes
    if device.type != "cpu":
        total: int = torch.cuda.mem_get_info(device)[1]
        free -= int(total * (1 - settings.gpu_memory_share))
    each = block_bytes(model.config, settings.block_size, dtype)
    longest_bytes = -(-longest // settings.block_size) * each * num_ranks
    default = cpu_cache_bytes(longest_bytes) // num_ranks if device.type == "cpu" else free
    return fit_blocks(settings.num_blocks, settings.kv_bytes // num_ranks or default, each, free)


def cpu_cache_bytes(longest_bytes: int) -> int:
    """Room for many short requests, and for the longest, which takes so much, unless it is huge."""
    return max(LEAST_CPU_CACHE_BYTES, min(MOST_CPU_CACHE_BYTES, longest_bytes))


def _free_bytes(device: torch.device, num_ranks: int) -> int:
    """For this rank: those on a CPU share its memory."""
    return memory.free_bytes(device) // (num_ranks if device.type == "cpu" else 1)


def _num_host_blocks(settings: WorkerSettings, model: Llama, dtype: torch.dtype) -> int:
    """The cache is allocated already, so that on a CPU it is no longer counted as free."""
    each = block_bytes(model.config, settings.block_size, dtype)
    num_ranks = settings.tensor_parallel
    free = _free_bytes(torch.device("cpu"), num_ranks)
    return fit_host_blocks(settings.swap_bytes // num_ranks, each, free)
