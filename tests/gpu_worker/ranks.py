"""Several ranks of a model, as threads; or one, as `python -m tests.gpu_worker.ranks`."""

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from common.messages import Ending, RequestId, Sampling
from gpu_worker.ops import torch_ops
from gpu_worker.parallel import Group
from gpu_worker.parallel_torch import meet
from gpu_worker.shard import Shard
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import CPU, make_engine

T = TypeVar("T")
Answers = Mapping[RequestId, list[int]]
WAIT_SECONDS = 30.0


class ThreadGroup:
    """A rank that meets the others, which are threads, at every call."""

    def __init__(self, shard: Shard, told: list[Tensor | int], barrier: threading.Barrier) -> None:
        self.shard = shard
        self._told = told  # by each rank
        self._barrier = barrier

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._of_all(x, lambda parts: torch.stack(parts).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        return self._of_all(x, lambda parts: torch.cat(parts, -1))

    def smallest(self, number: int) -> int:
        return self._of_all(number, min)

    def _of_all(self, mine: object, combine: Callable[[list], T]) -> T:  # type: ignore[type-arg]
        self._told[self.shard.rank] = mine  # type: ignore[assignment]
        self._barrier.wait(WAIT_SECONDS)
        combined = combine(self._told)
        self._barrier.wait(WAIT_SECONDS)
        return combined


def on_threads(size: int, act: Callable[[Group], T]) -> list[T]:
    """What each of `size` ranks returns. One that fails makes the others fail."""
    told: list[Tensor | int] = [0] * size
    barrier = threading.Barrier(size)

    def run(rank: int) -> T:
        try:
            return act(ThreadGroup(Shard(rank, size), told, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def answers(folder: Path, group: Group) -> Answers:
    """Of requests that join and leave, greedy and drawn, in a cache that is short of room."""
    weights = open_weights(folder)
    model = load_model(weights, torch_ops(), torch.float32, CPU, 512, group=group)
    assert group.smallest(group.shard.rank + 3) == 3
    assert model.config.num_groups == max(1, weights.config.num_groups // group.shard.size)
    driver = Driver(make_engine(model, num_blocks=24), max_step_tokens=20, max_running=4)
    drawn = Sampling(seed=3, temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.1)
    requests = [
        make_request(f"greedy.{i}", range(7 * i + 1, 12 * i + 14), Ending(8)) for i in range(2)
    ] + [
        make_request(f"drawn.{i}", range(5 * i + 2, 9 * i + 9), Ending(8), drawn) for i in range(2)
    ]
    return driver.run(requests[:2], {3: requests[2:]})


def main(arguments: Sequence[str]) -> None:
    """RANK, SIZE, PORT, folders: the answers of each model, as JSON."""
    torch.set_num_threads(1)
    rank, size, port = map(int, arguments[:3])
    group = meet(port, Shard(rank, size), CPU)
    print(json.dumps([answers(Path(folder), group) for folder in arguments[3:]]))


if __name__ == "__main__":
    main(sys.argv[1:])
