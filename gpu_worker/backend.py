"""Which device and which kernels the settings mean, on the machine that there is."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from common.config import WorkerSettings
from gpu_worker.claims import Gpu
from gpu_worker.engine import EngineError
from gpu_worker.model_config import ModelConfig
from gpu_worker.native.build import NativeUnavailableError
from gpu_worker.native.ops import native_ops, takes_all
from gpu_worker.ops import Ops, torch_ops


def choose_device(settings: WorkerSettings) -> torch.device:
    """The device that backend and device name together. Raises EngineError if there is none."""
    has_gpu = torch.cuda.is_available()
    asks_cpu = "cpu" in {settings.backend, settings.device}
    asks_gpu = settings.backend == "triton" or settings.device not in {"auto", "cpu"}
    if asks_cpu and asks_gpu:
        raise EngineError(
            f"--backend {settings.backend} and --device {settings.device} exclude each other"
        )
    if asks_gpu and not has_gpu:
        raise EngineError("there is no GPU that torch can use: take --backend cpu --device auto")
    if asks_cpu or not has_gpu:
        return torch.device("cpu")
    try:
        return torch.device("cuda" if settings.device == "auto" else settings.device)
    except RuntimeError:
        raise EngineError(f"--device {settings.device}: torch knows no such device") from None


def candidates(device: torch.device, num_ranks: int, gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    """Of the GPUs that this process sees, those that the settings allow. EngineError if too few."""
    if device.index is not None and num_ranks > 1:
        raise EngineError(
            f"--device {device} is one GPU, for {num_ranks} ranks: take --device auto"
        )
    if max(num_ranks, (device.index or 0) + 1) > len(gpus):
        wanted = f"--device {device}" if num_ranks == 1 else f"--tensor-parallel {num_ranks}"
        raise EngineError(f"{wanted}: this process sees {len(gpus)} GPUs")
    return gpus if device.index is None else [gpus[device.index]]


def visible_gpus() -> list[Gpu]:
    """Under the names that `nvidia-smi -L` shows."""
    return [
        Gpu(f"GPU-{torch.cuda.get_device_properties(index).uuid}", f"cuda:{index}")
        for index in range(torch.cuda.device_count())
    ]


def choose_ops(settings: WorkerSettings, device: torch.device) -> Ops:
    """The kernels for a device; also sets how many threads compute."""
    if device.type != "cpu":
        if device.index is not None:
            torch.cuda.set_device(device)  # on which this thread's kernels run
        from gpu_worker.triton_build import set_cache_dir, set_compiler
        from gpu_worker.triton_ops import triton_ops  # not every machine has triton

        kernels = Path(settings.data_dir).absolute() / "kernels"
        set_cache_dir(kernels / "triton")
        set_compiler(kernels)
        return triton_ops(settings.deterministic, settings.quantization)
    threads = settings.threads or len(os.sched_getaffinity(0))
    threads = max(1, threads // settings.tensor_parallel)
    if settings.kernels != "torch":
        try:
            kernels = Path(settings.data_dir) / "kernels"
            ops = native_ops(kernels, threads, quantization=settings.quantization)
        except NativeUnavailableError as error:
            if settings.kernels == "native":
                raise EngineError(f"--kernels native: {error}") from error
        else:
            torch.set_num_threads(1)  # the kernels have threads of their own
            return ops
    torch.set_num_threads(threads)
    return torch_ops(settings.quantization)


def check_deterministic(
    settings: WorkerSettings, ops: Ops, config: ModelConfig, dtype: torch.dtype
) -> None:
    """Refuse what cannot give a row the same bits in any batch. Raises EngineError."""
    if not settings.deterministic:
        return
    if settings.tensor_parallel > 1:
        raise EngineError("--deterministic: ranks add up in orders of their own: take one rank")
    if ops.name.startswith("triton") and settings.quantization != "none":
        raise EngineError("--deterministic on a GPU takes --quantization none")
    if ops.name.startswith("torch"):
        raise EngineError("--deterministic on a CPU takes --kernels native, and a C compiler")
    if ops.name.startswith("native") and not takes_all(config, dtype):
        raise EngineError(
            "--deterministic on a CPU takes --dtype bfloat16 or float32, and a model whose widths "
            "are multiples of 16"
        )


def describe(device: torch.device, ops: Ops, num_ranks: int = 1) -> str:
    """The device, as `queue` shows it."""
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    ranks = f", {num_ranks} ranks" if num_ranks > 1 else ""
    return f"{name} ({ops.name} kernels){ranks}"
