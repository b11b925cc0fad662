"""The deterministic operations: a row is the same bits alone, among others, and in any chunk."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpu_worker.kernels.attention_triton import fixed_attention
from gpu_worker.kernels.fixed_matmul_triton import fixed_matmul
from gpu_worker.kernels.gather_norm_triton import last_norm
from gpu_worker.kernels.logprobs_triton import logprobs
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.sample_triton import sample
from gpu_worker.kernels.silu_mul_triton import silu_mul
from tests.gpu.cases import normal, on_device
from tests.gpu.machine import Machine
from tests.gpu.report import Report
from tests.gpu.sampling import columns_of
from tests.gpu_worker.attention_cases import Sequences, rows_of
from tests.gpu_worker.kernel_cases import Shape, make_step

BF16 = torch.bfloat16


def bits(machine: Machine, report: Report) -> None:
    shapes = machine.pick([Shape(32, 8, 128, 16), Shape(9, 3, 64, 16)], [Shape(2, 1, 64, 16)])
    for shape in shapes:
        with report.case(f"attention {shape}"):
            _attention(machine, report, shape)
    for num_out, num_in in machine.pick([(4096, 14336), (28672, 4096)], [(70, 200)]):
        with report.case(f"fixed_matmul {num_out} by {num_in}"):
            _matmul(machine, report, num_out, num_in)
    with report.case("rows"):
        _rows(machine, report, machine.pick(4096, 100))
    with report.case("sampling"):
        _sampling(machine, report, machine.pick(128_256, 300))


def _attention(machine: Machine, report: Report, shape: Shape) -> None:
    real: Sequences = [(1, 800), (200, 1500), (1, 3000), (17, 63), (1, 1)]
    dry: Sequences = [(1, 30), (20, 1040)]
    step = make_step(machine.pick(real, dry), shape, BF16)

    def attend(sequence: int, start: int, stop: int) -> Tensor:
        part = on_device(rows_of(step, sequence, start, stop), machine.device)
        return fixed_attention(*part.tensors, shape.head_size**-0.5)

    together = fixed_attention(*on_device(step, machine.device).tensors, shape.head_size**-0.5)
    for sequence in range(len(step.lengths)):
        first, end = step.cu_seqlens[sequence : sequence + 2].tolist()
        rows, name = end - first, f"attention of {shape.head_size}, sequence {sequence}"
        report.equal(f"{name} alone", attend(sequence, 0, rows), together[first:end])
        middle = rows // 3
        if middle:
            parts = torch.cat((attend(sequence, 0, middle), attend(sequence, middle, rows)))
            report.equal(f"{name} in two chunks", parts, together[first:end])


def _matmul(machine: Machine, report: Report, num_out: int, num_in: int) -> None:
    weight = (normal(num_out, num_in) * num_in**-0.5).to(machine.device, BF16)
    bias = normal(num_out).to(machine.device, BF16)
    x = normal(machine.pick(300, 70), num_in).to(machine.device, BF16)
    _check_rows(report, f"fixed_matmul {num_out}", lambda x: fixed_matmul(x, weight, bias), x)


def _rows(machine: Machine, report: Report, width: int) -> None:
    x, residual = normal(2, machine.pick(70, 20), width, dtype=BF16).to(machine.device)
    weight = normal(width, dtype=BF16).to(machine.device)
    _check_rows(report, "silu_mul", silu_mul, x)
    _check_rows(report, "rms_norm", lambda x: rms_norm(x, weight, 1e-5, None)[0], x)
    together, _ = rms_norm(x, weight, 1e-5, residual)
    last = torch.tensor([11, 0, len(x) - 1], device=machine.device)
    report.equal("last_norm", last_norm(x, residual, last, weight, 1e-5), together[last])


def _check_rows(report: Report, name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Each row alone, and all of them at other places."""
    together = function(x)
    turned = function(x.roll(29, 0).contiguous())
    report.equal(f"{name}, turned", turned, together.roll(29, 0))
    for row in (0, 15, len(x) // 2, len(x) - 1):
        report.equal(
            f"{name}, row {row} alone", function(x[row : row + 1]), together[row : row + 1]
        )


def _sampling(machine: Machine, report: Report, vocab: int) -> None:
    rows = machine.pick(10, 2)
    logits = (normal(rows, vocab) * 2.5).to(machine.device)
    columns = [column.to(machine.device) for column in columns_of(rows)]
    tokens, _ = sample(logits.clone(), *columns)
    whole = logprobs(logits, tokens, 5)
    for row in machine.pick((0, 4, 8, 9), (1,)):
        one = [column[row : row + 1] for column in columns]
        alone, _ = sample(logits[row : row + 1].clone(), *one)
        report.equal(f"sample, row {row} alone", alone, tokens[row : row + 1])
        parts = logprobs(logits[row : row + 1], tokens[row : row + 1], 5)
        for what, part, of in zip(("chosen", "top", "tokens"), parts, whole, strict=True):
            report.equal(f"logprobs {what}, row {row} alone", part, of[row : row + 1])
