"""Linear layers: few rows, quantised weights, one order of sums; and weights that are widened."""

import torch
from torch import Tensor

from gpu_worker.kernels.fixed_matmul import fixed_matmul_reference
from gpu_worker.kernels.fixed_matmul_triton import fixed_matmul
from gpu_worker.kernels.int4_matmul import int4_matmul_reference, pack
from gpu_worker.kernels.int4_matmul_triton import int4_matmul
from gpu_worker.kernels.small_matmul import small_matmul_reference
from gpu_worker.kernels.small_matmul_triton import small_matmul
from gpu_worker.kernels.widen import widen_bytes_reference, widen_int4_reference
from gpu_worker.kernels.widen_triton import widen_bytes, widen_int4
from tests.gpu.cases import normal, on, poisoned
from tests.gpu.machine import Machine
from tests.gpu.report import Report

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Shape = tuple[int, int, int]  # rows, outputs, inputs


def matmuls(machine: Machine, report: Report) -> None:
    real: list[Shape] = [(1, 4096, 14336), (16, 1024, 14336), (64, 4096, 4096), (130, 33, 300)]
    dry: list[Shape] = [(1, 40, 4100)]
    with poisoned():
        for shape in machine.pick(real, dry):
            for kind in ("plain", "int8", "fp8"):
                with report.case(f"small_matmul {kind} {shape}"):
                    _small(machine, report, shape, kind, BF16)
        for shape, group in machine.pick(
            [((1, 4096, 14336), 128), ((64, 1024, 14336), 128), ((130, 33, 192), 32)],
            [((2, 65, 64), 32)],
        ):
            with report.case(f"int4_matmul {shape}, groups of {group}"):
                _int4(machine, report, shape, group)
        for dtype in machine.pick((BF16, FP16, FP32), (BF16,)):
            for shape in machine.pick(
                [(1, 4096, 4096), (65, 28672, 4096), (300, 130, 300)], [(3, 40, 70)]
            ):
                with report.case(f"fixed_matmul {dtype} {shape}"):
                    _fixed(machine, report, shape, dtype)
        with report.case("small_matmul in float16"):
            _small(machine, report, machine.pick((16, 4096, 4096), (2, 33, 64)), "fp8", FP16)
        with report.case("widened weights"):
            _widened(machine, report)


def _layer(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows, num_out, num_in = shape
    return normal(rows, num_in, dtype=dtype), normal(num_out, dtype=dtype)


def _small(machine: Machine, report: Report, shape: Shape, kind: str, dtype: torch.dtype) -> None:
    x, bias = _layer(shape, dtype)
    _, num_out, num_in = shape
    scale = torch.rand(num_out) * 0.1
    weight = normal(num_out, num_in) * 30
    if kind == "plain":
        given: list[Tensor | None] = [(weight / 30 * num_in**-0.5).to(dtype), None]
    else:
        given = [weight.to(torch.int8 if kind == "int8" else torch.float8_e4m3fn), scale]
    expected = small_matmul_reference(x, *given, bias)
    placed = [None if tensor is None else tensor.to(machine.device) for tensor in given]
    on_x, on_bias = on(machine.device, x, bias)
    report.close_to(f"small_matmul {kind} {shape}", small_matmul(on_x, *placed, on_bias), expected)


def _int4(machine: Machine, report: Report, shape: Shape, group: int) -> None:
    x, bias = _layer(shape, BF16)
    _, num_out, num_in = shape
    levels = torch.randint(0, 16, (num_out, num_in))
    scale = torch.rand(num_in // group, num_out) * 0.1
    zero = torch.randint(0, 17, scale.shape).float()
    weight = (pack(levels, group), scale, zero)
    actual = int4_matmul(*on(machine.device, x, *weight, bias))
    expected = int4_matmul_reference(x, *weight, bias)
    report.close_to(f"int4_matmul {shape}, groups of {group}", actual, expected)


def _fixed(machine: Machine, report: Report, shape: Shape, dtype: torch.dtype) -> None:
    x, bias = _layer(shape, dtype)
    weight = (normal(*shape[1:]) * shape[2] ** -0.5).to(dtype)
    actual = fixed_matmul(*on(machine.device, x, weight, bias))
    expected = fixed_matmul_reference(x, weight, bias)
    report.close_to(f"fixed_matmul {dtype} {shape}", actual, expected)


def _widened(machine: Machine, report: Report) -> None:
    num_out, num_in = machine.pick((1000, 4096), (20, 64))
    for planes in (1, 2):
        group = 32
        packed = torch.cat(
            [pack(torch.randint(0, 16, (num_out, num_in)), group) for _ in range(planes)]
        )
        scale = torch.rand(planes * num_in // group, num_out)
        zero = torch.randint(0, 17, scale.shape).float()
        actual = widen_int4(*on(machine.device, packed, scale, zero), planes, BF16)
        expected = widen_int4_reference(packed, scale, zero, planes, BF16)
        report.close_to(f"widen_int4, {planes} planes", actual, expected)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        values, scale = (normal(num_out, num_in) * 30).to(dtype), torch.rand(num_out)
        on_values, on_scale = values.to(machine.device), scale.to(machine.device)
        actual = widen_bytes(on_values, on_scale, BF16)
        expected = widen_bytes_reference(values, scale, BF16)
        report.close_to(f"widen_bytes {dtype}", actual, expected)
