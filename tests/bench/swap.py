"""What it costs to swap a row out and in again, beside computing it anew, over its length.

    python -m tests.bench.swap [--model embedded] [--contexts 64,256,1024,4096] [--repeats 5]

One engine, alone, as `./chairlift worker` makes it. Blocks lie scattered, on both sides. Medians
over the repeats, and in brackets the first time, when some of the host memory was never touched.
Recomputing is done in steps as large as the worker takes, with nobody else in them. Bytes are
counted once.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.config import WorkerSettings
from common.messages import (
    BlockId,
    Chunk,
    Ending,
    HostBlockId,
    RequestId,
    RowStart,
    Sampling,
    StepPlan,
    Swap,
)
from gpu_worker.engine import Engine
from gpu_worker.loading import load_engine

ROW = RequestId("swap.0")


@dataclass
class Bench:
    engine: Engine
    block_bytes: int
    step: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def swap(self, num_blocks: int) -> tuple[float, float]:
        """Seconds out and in, of blocks that lie anywhere."""
        capacity = self.engine.capacity
        device = self.draw.sample(range(capacity.num_blocks), num_blocks)
        host = self.draw.sample(range(num_blocks), num_blocks)  # the ones used last are used next
        pairs: tuple[Swap, ...] = tuple(
            (BlockId(a), HostBlockId(b)) for a, b in zip(device, host, strict=True)
        )
        self.step += 2
        out = self.engine.execute(StepPlan(self.step - 1, swap_out=pairs))
        back = self.engine.execute(StepPlan(self.step, swap_in=pairs))
        return out.seconds, back.seconds

    def recompute(self, num_tokens: int) -> float:
        """Seconds for a prompt of so many tokens, all its steps together."""
        capacity = self.engine.capacity
        num_blocks = -(-(num_tokens + 1) // capacity.block_size)
        table = tuple(BlockId(b) for b in self.draw.sample(range(capacity.num_blocks), num_blocks))
        tokens = tuple(self.draw.randrange(1000, 9000) for _ in range(num_tokens))
        row = RowStart(ROW, tokens, num_tokens, Sampling(seed=0), Ending(max_tokens=9), ())
        seconds = 0.0
        for start in range(0, num_tokens, capacity.max_step_tokens):
            count = min(capacity.max_step_tokens, num_tokens - start)
            is_last = start + count == num_tokens
            chunk = Chunk(ROW, start, count, () if start else table, samples=is_last)
            self.step += 1
            admitted = () if start else (row,)
            plan = StepPlan(self.step, admitted=admitted, chunks=(chunk,))
            seconds += self.engine.execute(plan).seconds
        self.step += 1
        self.engine.execute(StepPlan(self.step, released=(ROW,)))
        return seconds


def report(bench: Bench, contexts: Sequence[int], repeats: int) -> None:
    capacity = bench.engine.capacity
    print(
        f"{capacity.model} on {capacity.device}; a block of {capacity.block_size} tokens takes "
        f"{bench.block_bytes:,} bytes, {capacity.num_blocks} here, {capacity.num_host_blocks} in "
        f"host memory; steps of {capacity.max_step_tokens} tokens"
    )
    print(
        "tokens  blocks     MB   out, ms (first)   in, ms (first)    GB/s out, in  "
        "recompute, ms  ratio"
    )
    for num_tokens in contexts:
        num_blocks = -(-num_tokens // capacity.block_size)
        moved = num_blocks * bench.block_bytes
        first_out, first_in = bench.swap(num_blocks)
        times = [bench.swap(num_blocks) for _ in range(repeats)]
        out, back = (statistics.median(column) for column in zip(*times, strict=True))
        bench.recompute(min(num_tokens, capacity.max_step_tokens))  # warms up
        anew = statistics.median(bench.recompute(num_tokens) for _ in range(repeats))
        print(
            f"{num_tokens:6} {num_blocks:7} {moved / 1e6:6.1f}"
            f" {out * 1e3:9.2f} ({first_out * 1e3:6.2f}) {back * 1e3:8.2f} ({first_in * 1e3:6.2f})"
            f" {moved / out / 1e9:6.2f} {moved / back / 1e9:6.2f}"
            f" {anew * 1e3:14.1f} {anew / (out + back):6.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--contexts", default="64,256,1024,4096")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    engine = load_engine(WorkerSettings(model=given.model))
    cache = engine._processor.cache
    block_bytes = 2 * cache.k[:, 0].numel() * cache.k.element_size()
    contexts = [int(length) for length in given.contexts.split(",")]
    report(Bench(engine, block_bytes), contexts, given.repeats)


if __name__ == "__main__":
    main()
