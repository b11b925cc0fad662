"""Where each millisecond of a decoding step goes, against the time its bytes need from memory.

    python -m tests.bench.step [--rows 1 16] [--context 192] [--quantization none int8]

The embedded model in bfloat16 in an engine of its own, without bus or gateway: each step one token
of every row, greedy. A line is a part of a step, its median over the steps; the parts of `layers`
are timed within the C code. The floor is what the part must read at least once, by the bandwidth
with which as many threads read a large array in order.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common.config import WorkerSettings
from common.messages import BlockId, Chunk, Ending, RequestId, RowStart, Sampling, StepPlan
from gpu_worker import batch, model_engine, processor
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import ModelEngine
from gpu_worker.native.layers import JoinedLayers

WARM_UP = 5
LAYER_PARTS = ("linear", "attention", "rms_norm", "rotary_kv_write", "silu_mul")

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Floors:
    """Bytes that a part reads at least."""

    linear: int
    head: int
    attention: int

    def of(self, part: str) -> int:
        parts = {"linear": self.linear, "head": self.head, "attention": self.attention}
        return sum(parts.values()) if part == "step" else parts.get(part, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=192, help="tokens of each row's prompt")
    parser.add_argument("--quantization", nargs="+", default=["none", "int8"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    for quantization in options.quantization:
        with tempfile.TemporaryDirectory() as folder:
            engine = load(quantization, options.threads, Path(folder))
            bandwidth = gigabytes_per_second(options.threads)
            print(f"{engine.capacity.device}: reads {bandwidth:.1f} GB/s in order")
            for rows in options.rows:
                times = decode(engine, rows, options.context, options.steps)
                report(times, floors(engine, rows, options.context, quantization), rows, bandwidth)


def load(quantization: str, threads: int, folder: Path) -> ModelEngine:
    settings = WorkerSettings(
        data_dir=str(folder), quantization=quantization, threads=threads, max_step_tokens=512
    )
    return load_engine(settings)


def gigabytes_per_second(threads: int) -> float:
    """The best of several passes over 512 MiB, each thread its own part."""
    torch.set_num_threads(threads)
    values = torch.zeros(1 << 26, dtype=torch.int64)
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        values.sum()
        best = max(best, values.nbytes / (time.perf_counter() - began) / 1e9)
    torch.set_num_threads(1)
    return best


def decode(engine: ModelEngine, rows: int, context: int, steps: int) -> Times:
    """Milliseconds of each part, step by step."""
    engine.reset()
    names = [RequestId(f"row-{i}") for i in range(rows)]
    prefill(engine, names, context, steps + WARM_UP)
    layers = engine._processor.model.hidden
    assert isinstance(layers, JoinedLayers), "no kernels in C here"
    layers.measure()
    times: Times = defaultdict(list)
    with timed(engine, times):
        for step in range(steps + WARM_UP):
            plan = StepPlan(
                step + 2 + rows,
                chunks=tuple(Chunk(name, context + step, 1, (), samples=True) for name in names),
            )
            began = time.perf_counter()
            result = engine.execute(plan)
            times["step"].append((time.perf_counter() - began) * 1e3)
            assert len(result.sampled) == rows
            for kernel, taken in layers.milliseconds().items():
                times[kernel].append(taken)
    return {part: taken[WARM_UP:] for part, taken in times.items()}


def prefill(engine: ModelEngine, names: list[RequestId], context: int, answer: int) -> None:
    size = engine.capacity.block_size
    blocks = -(-(context + answer) // size)
    for i, name in enumerate(names):
        own = tuple(BlockId(block) for block in range(i * blocks, (i + 1) * blocks))
        tokens = tuple((7 * i + 13 * place) % 40_000 + 100 for place in range(context))
        start = RowStart(
            name, tokens, context, Sampling(seed=i, temperature=0.0), Ending(answer + 1), ()
        )
        engine.execute(
            StepPlan(i + 1, admitted=(start,), chunks=(Chunk(name, 0, context, own, samples=True),))
        )


@contextmanager
def timed(engine: ModelEngine, times: Times) -> Iterator[None]:
    """Take the time of what a step calls, each call under a name."""
    model = engine._processor.model
    places: list[tuple[Any, str, str]] = [
        (model_engine, "build", "batch"),
        (batch.Batch, "fields", "arrays"),
        (processor, "sample", "sampling"),
    ]
    before = [getattr(owner, name) for owner, name, _ in places]
    cached = {"hidden": model.hidden, "logits": model.logits}
    for (owner, name, part), function in zip(places, before, strict=True):
        setattr(owner, name, stopwatch(function, part, times))
    model.__dict__["hidden"] = stopwatch(model.hidden, "layers", times)
    model.__dict__["logits"] = stopwatch(model.logits, "head", times)
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)
        model.__dict__.update(cached)


def stopwatch(function: Callable[..., Any], part: str, times: Times) -> Callable[..., Any]:
    def call(*args: Any, **names: Any) -> Any:
        began = time.perf_counter()
        result = function(*args, **names)
        times[part].append((time.perf_counter() - began) * 1e3)
        return result

    return call


def floors(engine: ModelEngine, rows: int, context: int, quantization: str) -> Floors:
    config = engine._processor.model.config
    heads = (config.num_heads + 2 * config.num_groups) * config.head_size
    layer = config.width * (heads + config.num_heads * config.head_size + 3 * config.ffn_width)
    each = 1 if quantization == "int8" else 2
    cached = 2 * config.num_groups * config.head_size * config.num_layers
    return Floors(
        linear=each * config.num_layers * layer,
        head=each * config.vocab_size * config.width,
        attention=2 * rows * context * cached,
    )


def report(times: Times, floors: Floors, rows: int, bandwidth: float) -> None:
    median = {part: statistics.median(taken) for part, taken in times.items()}
    known = sum(median[part] for part in LAYER_PARTS)
    lines = [(part, median[part]) for part in LAYER_PARTS]
    lines += [("embedding, rest of layers", median["layers"] - known)]
    others = ("head", "sampling", "batch", "arrays")
    lines += [(part, median[part]) for part in others]
    rest = median["step"] - median["layers"] - sum(median[part] for part in others)
    lines += [("rows, results, rest", rest)]
    lines += [("step", median["step"])]
    for part, taken in lines:
        floor = floors.of(part) / bandwidth / 1e6
        line = f"{rows:4} rows  {part:26} {taken:7.2f} ms"
        print(line + (f"  floor {floor:5.2f}" if floor else ""), flush=True)


if __name__ == "__main__":
    main()
