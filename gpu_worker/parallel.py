"""One model on several ranks: what they tell each other, and the layers that need it.

Axes: N tokens of the step, V vocabulary, E width.

Everything between two sums is computed by each rank for its own heads and its own part of the
feed-forward width; what comes out of `all_reduce` and `all_gather` is whole, on every rank.
"""

from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.ops import Linear
from gpu_worker.shard import Shard


class Group(Protocol):
    """The ranks of one model. Each call is made by all of them, in the same order."""

    @property
    def shard(self) -> Shard: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, of the shape of `x`, which may be overwritten."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[N, A] of each rank as [N, size * A], in order of rank; the same bits everywhere."""
        ...

    def smallest(self, number: int) -> int: ...


class Alone:
    """A group of one rank: it does nothing."""

    shard = Shard()

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def smallest(self, number: int) -> int:
        return number


ALONE = Alone()


def reduced(linear: Linear, group: Group) -> Linear:
    """A layer of whose input each rank has a part: the sum of what the ranks make of theirs."""
    if group.shard.size == 1:
        return linear
    return lambda x: group.all_reduce(linear(x))


def gathered(linear: Linear, group: Group, vocab_size: int) -> Linear:
    """A head of whose tokens each rank has a part: all [N, V] of them, on every rank."""
    if group.shard.size == 1:
        return linear
    return lambda x: group.all_gather(linear(x))[:, :vocab_size].contiguous()


def embed(tokens: Tensor, embedding: Tensor, group: Group) -> Tensor:
    """tokens [N] to [N, E], where `embedding` has this rank's part of the vocabulary.

    All ranks but one add zeros, so that the sum is exact.
    """
    local = tokens - group.shard.rank * len(embedding)
    is_mine = (local >= 0) & (local < len(embedding))
    rows = embedding[local.clamp(0, len(embedding) - 1)]
    return group.all_reduce(torch.where(is_mine[:, None], rows, 0.0))
