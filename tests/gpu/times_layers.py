"""Times of the kernels between matrix products, and of torch.compile's."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.block_copy_triton import block_copy
from gpu_worker.kernels.gather_norm_triton import embed_norm, last_norm
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul_triton import silu_mul
from tests.gpu import library
from tests.gpu.machine import Machine
from tests.gpu.timed import Run, Timed
from tests.gpu_worker.kernel_costs import Cost, layer_costs, sampling_costs

BLOCK_SIZE = 16
ROWS = (1, 64, 8192)


def layer_times(machine: Machine) -> Iterator[Timed]:
    for rows in machine.pick(ROWS, ROWS[:1]):
        costs = {cost.name: cost for cost in layer_costs(rows)}
        runs = _runs(machine, machine.pick(rows, 2))
        for name, run in runs.items():
            yield Timed(costs[name], run)
    yield Timed(sampling_costs(64)[0], _last_norm(machine, machine.pick(64, 2)))
    yield from _copies(machine)


def _runs(machine: Machine, rows: int) -> dict[str, Run]:
    x, residual, weight = _norm_inputs(machine, rows)
    tokens = torch.randint(0, len(x), (rows,), device=machine.device).int()
    qkv, cos_sin, positions, caches, slots = _rotary_inputs(machine, rows)
    octets = [cache.to(torch.float8_e4m3fn) for cache in caches]
    scales = list(torch.ones(2, caches[0].shape[1], device=machine.device))
    rotary = (qkv, cos_sin, positions, None, None, 1e-5)
    return {
        "rms_norm with residual": partial(rms_norm, x, weight, 1e-5, residual),
        "embed_norm": partial(embed_norm, tokens, x, weight, 1e-5),
        "rotary_kv_write": partial(rotary_kv_write, *rotary, *caches, slots),
        "rotary_kv_write fp8": partial(rotary_kv_write, *rotary, *octets, slots, *scales),
        "silu_mul, gelu_mul": partial(silu_mul, _gate_up(machine, rows)),
    }


def compiled_times(machine: Machine) -> Iterator[Timed]:
    """The same kernels again, beside torch.compile's."""
    for rows in machine.pick(ROWS[1:], ROWS[:1]):
        costs = {cost.name: cost for cost in layer_costs(rows)}
        count = machine.pick(rows, 2)
        runs = _runs(machine, count)
        x, residual, weight = _norm_inputs(machine, count)
        qkv, cos_sin, positions, caches, slots = _rotary_inputs(machine, count)
        places = (slots // BLOCK_SIZE, slots % BLOCK_SIZE)
        theirs = {
            "rms_norm with residual": (library.add_norm, (x, residual, weight)),
            "silu_mul, gelu_mul": (library.gated, (_gate_up(machine, count),)),
            "rotary_kv_write": (
                library.rotate_and_write,
                (qkv, cos_sin, positions, *caches, *places),
            ),
        }
        for name, (function, inputs) in theirs.items():
            compiled = partial(machine.compiled(function), *inputs)
            yield Timed(costs[name], runs[name], "torch.compile", compiled)


def _last_norm(machine: Machine, rows: int) -> Run:
    x, residual, weight = _norm_inputs(machine, rows)
    last = torch.arange(rows, device=machine.device)
    return partial(last_norm, x, residual, last, weight, 1e-5)


def _copies(machine: Machine) -> Iterator[Timed]:
    """Four blocks of 8B within the device, and from there to the host and back.

    The bus has no floor here: what it reaches is to be seen.
    """
    layers, groups, size, count = machine.pick((32, 8, 128, 4), (2, 1, 8, 2))
    shape = (layers, count, groups, BLOCK_SIZE, size)
    near = torch.randn(shape, device=machine.device).bfloat16()
    other, far = near.clone(), machine.pinned(near)
    pairs = torch.arange(count, device=machine.device)[:, None].repeat(1, 2)
    num_bytes = 2 * 32 * 4 * 8 * BLOCK_SIZE * 128 * 2
    for name, source, target in (
        ("block_copy, device", near, other),
        ("block_copy, to the host", near, far),
        ("block_copy, from the host", far, near),
    ):
        yield Timed(Cost(name, count, num_bytes, 0), partial(block_copy, source, target, pairs))


def _norm_inputs(machine: Machine, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    width = machine.pick(4096, 64)
    x, residual = torch.randn(2, rows, width, device=machine.device).bfloat16()
    return x, residual, torch.ones(width, device=machine.device).bfloat16()


def _gate_up(machine: Machine, rows: int) -> Tensor:
    return torch.randn(rows, machine.pick(2 * 14336, 64), device=machine.device).bfloat16()


def _rotary_inputs(
    machine: Machine, rows: int
) -> tuple[Tensor, Tensor, Tensor, list[Tensor], Tensor]:
    """qkv, cos_sin, positions, caches and slots, of which all are written."""
    heads, groups, size = machine.pick((32, 8, 128), (4, 2, 16))
    device, num_blocks = machine.device, rows // BLOCK_SIZE + 1
    qkv = torch.randn(rows, (heads + 2 * groups) * size, device=device).bfloat16()
    cos_sin = torch.randn(8192, size, device=device)
    positions = torch.randint(0, 8192, (rows,), device=device).int()
    shape = (num_blocks, groups, BLOCK_SIZE, size)
    caches = [torch.zeros(shape, device=device).bfloat16() for _ in range(2)]
    return qkv, cos_sin, positions, caches, torch.randperm(rows, device=device)
