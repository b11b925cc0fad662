"""Norms, activations, rotary embedding with the write into the cache, and copies of blocks."""

from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.block_copy_triton import block_copy
from gpu_worker.kernels.gather_norm import embed_norm_reference, last_norm_reference
from gpu_worker.kernels.gather_norm_triton import embed_norm, last_norm
from gpu_worker.kernels.gelu_mul import gelu_mul_reference
from gpu_worker.kernels.gelu_mul_triton import gelu_mul
from gpu_worker.kernels.rms_norm import rms_norm_reference
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write import rotary_kv_write_reference
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul import silu_mul_reference
from gpu_worker.kernels.silu_mul_triton import silu_mul
from tests.gpu.cases import TYPES, normal, on, poisoned
from tests.gpu.machine import Machine
from tests.gpu.report import Report

BYTES = torch.float8_e4m3fn
EPS = 1e-5


def layers(machine: Machine, report: Report) -> None:
    sizes = machine.pick([(33, 4096), (7, 1025)], [(2, 64), (3, 33)])  # rows, width
    for name, dtype in machine.pick(TYPES, {"fp16": torch.float16}).items():
        for rows, width in sizes:
            label = f"{name}, {rows} by {width}"
            with poisoned():
                _norms(machine, report, label, normal(2, rows, width, dtype=dtype))
                _activations(machine, report, label, normal(rows, 2 * width, dtype=dtype) * 5)
        with poisoned():
            for cached in (dtype, BYTES):
                for has_norms in (False, True):
                    with report.case(f"rotary {name}, cache {cached}, norms {has_norms}"):
                        _rotary(machine, report, dtype, cached, has_norms)
    _copies(machine, report)


def _norms(machine: Machine, report: Report, label: str, both: Tensor) -> None:
    x, residual = both
    weight = normal(x.shape[1], dtype=x.dtype)
    with report.case(f"rms_norm {label}"):
        for given in (None, residual):
            expected = rms_norm_reference(x, weight, EPS, given)
            on_x, on_weight = on(machine.device, x, weight)
            on_given = None if given is None else on(machine.device, given)[0]
            actual = rms_norm(on_x, on_weight, EPS, on_given)
            for what, one, other in zip(("norm", "sum"), actual, expected, strict=True):
                report.close_to(f"rms_norm {what} {label}", one, other)
    with report.case(f"embed_norm {label}"):
        tokens = torch.randint(0, len(x), (2 * len(x),)).int()
        expected = embed_norm_reference(tokens, x, weight, EPS)
        actual = embed_norm(*on(machine.device, tokens, x, weight), EPS)
        report.close_to(f"embed_norm {label}", actual[0], expected[0])
        report.equal(f"embedding {label}", actual[1], expected[1])
    with report.case(f"last_norm {label}"):
        last = torch.randperm(len(x))[: len(x) // 2 + 1]
        expected = last_norm_reference(x, residual, last, weight, EPS)
        actual = last_norm(*on(machine.device, x, residual, last, weight), EPS)
        report.close_to(f"last_norm {label}", actual, expected)


def _activations(machine: Machine, report: Report, label: str, gate_up: Tensor) -> None:
    kinds = {
        "silu_mul": (silu_mul, silu_mul_reference),
        "gelu_mul erf": (partial(gelu_mul, tanh=False), partial(gelu_mul_reference, tanh=False)),
        "gelu_mul tanh": (partial(gelu_mul, tanh=True), partial(gelu_mul_reference, tanh=True)),
    }
    for kind, (function, reference) in kinds.items():
        with report.case(f"{kind} {label}"):
            actual = function(*on(machine.device, gate_up))
            report.close_to(f"{kind} {label}", actual, reference(gate_up))


def _rotary(
    machine: Machine, report: Report, dtype: torch.dtype, cached: torch.dtype, has_norms: bool
) -> None:
    rows = machine.pick(50, 3)
    heads, groups, size, block_size, num_blocks = machine.pick(
        (32, 8, 128, 16, 20), (3, 1, 16, 4, 4)
    )
    name = f"rotary {dtype}, cache {cached}{', norms' * has_norms}".replace("torch.", "")
    angles = torch.rand(500, size // 2) * 6
    qkv = normal(rows, (heads + 2 * groups) * size, dtype=dtype)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions = torch.randint(0, 500, (rows,)).int()
    slots = torch.randperm(num_blocks * block_size)[:rows]
    slots[rows // 2] = -1  # of padding: not written
    norms = list(normal(2, size, dtype=dtype)) if has_norms else [None, None]
    scales = list(torch.rand(2, groups) + 0.5) if cached == BYTES else []
    theirs = torch.full((2, num_blocks, groups, block_size, size), torch.nan).to(cached)
    ours = theirs.to(machine.device)
    expected = rotary_kv_write_reference(
        qkv, cos_sin, positions, *norms, EPS, *theirs, slots, *scales
    )
    placed = on(machine.device, qkv, cos_sin, positions)
    on_norms = on(machine.device, *norms) if has_norms else [None, None]
    on_scales = on(machine.device, *scales)
    [on_slots] = on(machine.device, slots)
    actual = rotary_kv_write(*placed, *on_norms, EPS, *ours, on_slots, *on_scales)
    report.close_to(name, actual.flatten(1), expected.flatten(1))
    written, wanted = ours.float().cpu(), theirs.float()
    report.equal(f"{name}: slots", written.isnan(), wanted.isnan())
    # With eight bits, a last bit before rounding can be a step of 1/16 behind it.
    within = 2e-2 if cached == BYTES else None
    written, wanted = (x.nan_to_num(0.0).to(dtype) for x in (written, wanted))
    report.close_to(f"{name}: cache", written.flatten(1), wanted.flatten(1), within)


def _copies(machine: Machine, report: Report) -> None:
    """Within the device, and from there to pinned memory of the host and back."""
    part = machine.pick((8, 16, 128), (1, 4, 8))
    source, target = normal(3, 70, *part).bfloat16(), normal(3, 90, *part).bfloat16()
    pairs = torch.stack([torch.randperm(70)[:33], torch.randperm(90)[:33]], dim=1)
    expected = target.clone()
    expected[:, pairs[:, 1]] = source[:, pairs[:, 0]]
    near, far = machine.device, "host"
    for start, end in ((near, near), (near, far), (far, near)):
        with report.case(f"block_copy {start} to {end}"):
            ours = machine.pinned(source) if start == far else source.to(near)
            theirs = machine.pinned(target) if end == far else target.to(near, copy=True)
            block_copy(ours, theirs, pairs)
            machine.synchronize()
            report.equal(f"block_copy {start} to {end}", theirs, expected)
