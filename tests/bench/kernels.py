"""How long each CPU kernel takes in a decoding step, against the time its bytes need from memory.

    python -m tests.bench.kernels [--kernels native|torch] [--threads 2] [--rows 1,4,16,64]

Shapes are those of SmolLM2-135M in bfloat16, with 256 cached tokens for each row; a line is one
kind of kernel in all layers of a step. Refuses to report if a kernel differs from its reference.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.native.ops import native_ops
from gpu_worker.ops import Ops, torch_ops
from tests.gpu_worker.kernel_cases import Shape, Step, make_step

LAYERS, E, F, V, CONTEXT = 30, 576, 1536, 49152, 256
SHAPE = Shape(heads=9, groups=3, head_size=64, block_size=16)
QKV = (SHAPE.heads + 2 * SHAPE.groups) * SHAPE.head_size
REPEATS = 9

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    name: str
    run: Run  # the kernel's share of one step
    bytes: int  # that it must read at least once


def milliseconds(run: Run) -> float:
    """The median of several runs after one to warm up."""
    run()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)[len(times) // 2]


def gigabytes_per_second() -> float:
    """What copying in torch reads and writes, as a floor to compare with."""
    source = torch.zeros(1 << 28, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * len(source) / milliseconds(lambda: target.copy_(source)) / 1e6


def cases(ops: Ops, steps: list[Step], linears: dict[str, list[Run]], weights: int) -> list[Case]:
    rows = len(steps[0].q)
    x, gate_up = torch.randn(rows, E).bfloat16(), torch.randn(rows, 2 * F).bfloat16()
    weight, qkv = torch.ones(E).bfloat16(), torch.randn(rows, QKV).bfloat16()
    cos_sin = torch.randn(CONTEXT, SHAPE.head_size)
    positions = torch.full((rows,), CONTEXT - 1, dtype=torch.int32)
    slots = torch.arange(rows)

    def attend() -> None:
        for step in steps:
            ops.attention(*step.tensors, 0.125)

    def rotate() -> None:
        for step in steps:
            ops.rotary_kv_write(
                *(qkv, cos_sin, positions, None, None, 1e-5, step.k_cache, step.v_cache, slots)
            )

    cached = 2 * 2 * rows * CONTEXT * SHAPE.groups * SHAPE.head_size * LAYERS
    return [
        Case("linear, layers", lambda: [run() for run in linears["layers"]], weights),
        Case("linear, head", lambda: [run() for run in linears["head"]], 2 * V * E),
        Case("attention", attend, cached),
        Case("rms_norm", lambda: [ops.rms_norm(x, weight, 1e-5, x) for _ in range(61)], 0),
        Case("rotary_kv_write", rotate, 0),
        Case("silu_mul", lambda: [ops.silu_mul(gate_up) for _ in range(LAYERS)], 0),
    ]


class Weights:
    """Those of the whole model, packed once."""

    def __init__(self, ops: Ops) -> None:
        shapes = [(QKV, E), (E, E), (2 * F, E), (E, F)]
        self.layers = [(ops.pack(random(o, i), None), i) for o, i in shapes * LAYERS]
        self.head = ops.pack(random(V, E), None)
        self.bytes = 2 * LAYERS * sum(o * i for o, i in shapes)

    def runs(self, rows: int) -> dict[str, list[Run]]:
        inputs = {width: random(rows, width) for width in (E, F)}
        layers: list[Run] = [
            (lambda linear=linear, x=inputs[width]: linear(x)) for linear, width in self.layers
        ]
        return {"layers": layers, "head": [lambda: self.head(inputs[E])]}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def check(ops: Ops) -> None:
    step = make_step([(1, 33), (20, 50)], SHAPE, torch.bfloat16)
    expected = torch_ops().attention(*step.tensors, 0.125)
    torch.testing.assert_close(ops.attention(*step.tensors, 0.125), expected, atol=0.01, rtol=0.02)
    x, weight = random(3, E), random(64, E)
    expected = torch.nn.functional.linear(x.float(), weight.float()).bfloat16()
    torch.testing.assert_close(ops.pack(weight, None)(x), expected, atol=0.1, rtol=0.02)


def report(ops: Ops, all_rows: list[int]) -> None:
    bandwidth = gigabytes_per_second()
    print(f"kernels: {ops.name}; copying moves {bandwidth:.1f} GB/s")
    weights = Weights(ops)
    for rows in all_rows:
        sequences = [(1, CONTEXT)] * rows
        steps = [make_step(sequences, SHAPE, torch.bfloat16, seed) for seed in range(LAYERS)]
        total = floor = 0.0
        for case in cases(ops, steps, weights.runs(rows), weights.bytes):
            took, least = milliseconds(case.run), case.bytes / bandwidth / 1e6
            total, floor = total + took, floor + least
            print(f"{rows:4} rows  {case.name:16} {took:8.2f} ms   floor {least:6.2f} ms")
        print(f"{rows:4} rows  {'step':16} {total:8.2f} ms   floor {floor:6.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", choices=("native", "torch"), default="native")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,16,64")
    given = parser.parse_args()
    if given.kernels == "native":
        ops = native_ops(Path(tempfile.gettempdir()) / "chairlift-bench", given.threads)
        torch.set_num_threads(1)
    else:
        torch.set_num_threads(given.threads)
        ops = torch_ops()
    check(ops)
    report(ops, [int(rows) for rows in given.rows.split(",")])


if __name__ == "__main__":
    with torch.inference_mode():
        main()
