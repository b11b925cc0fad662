"""Which part of a model one rank of several computes: whole heads, and equal parts of the rest.

Layers that widen (qkv, gate and up) are split by output, those that follow them (out, down) by
input, so that two layers need one sum over the ranks; embedding and head are split by token.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_worker.engine import ModelError
from gpu_worker.model_config import ModelConfig


class Span(NamedTuple):
    """An axis of a tensor on disk, and the part [start, stop) of it that a rank takes."""

    size: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def whole(size: int) -> Span:
    return Span(size, 0, size)


@dataclass(frozen=True, slots=True)
class Shard:
    rank: int = 0
    size: int = 1  # ranks

    def part(self, count: int, width: int = 1) -> Span:
        """Of `count` things of `width` numbers each; `check_split` has seen that it comes out."""
        each = count // self.size * width
        return Span(count * width, self.rank * each, (self.rank + 1) * each)

    def groups(self, num_groups: int, head_size: int) -> Span:
        """Of key/value heads: where there are fewer than ranks, several ranks have the same one."""
        first = self.rank * num_groups // self.size
        stop = first + max(1, num_groups // self.size)
        return Span(num_groups * head_size, first * head_size, stop * head_size)

    def tokens(self, vocab_size: int) -> Span:
        """Of the vocabulary: as many for each rank, but that the last ones run out of it."""
        each = self.padded_tokens(vocab_size)
        start, stop = (min(rank * each, vocab_size) for rank in (self.rank, self.rank + 1))
        return Span(vocab_size, start, stop)

    def padded_tokens(self, vocab_size: int) -> int:
        """Rows of each rank's embedding and head; those beyond the vocabulary are zeros."""
        return -(-vocab_size // self.size)

    def config(self, config: ModelConfig) -> ModelConfig:
        """The sizes of what this rank computes. The vocabulary stays that of the model.

        Raises ModelError where the model cannot be split over so many ranks.
        """
        check_split(config, self.size)
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_groups=max(1, config.num_groups // self.size),
            ffn_width=config.ffn_width // self.size,
        )


def check_split(config: ModelConfig, size: int) -> None:
    """Raises ModelError, which names the numbers of ranks that the model can be split over."""
    if _splits(config, size):
        return
    possible = [str(n) for n in range(1, config.num_heads + 1) if _splits(config, n)]
    raise ModelError(
        f"--tensor-parallel {size}: {config.num_heads} query heads, {config.num_groups} key/value "
        f"heads and a feed-forward width of {config.ffn_width} do not split so; "
        f"this model takes {', '.join(possible)}"
    )


def _splits(config: ModelConfig, size: int) -> bool:
    heads, groups = config.num_heads, config.num_groups
    even_groups = groups % size == 0 or size % groups == 0
    return heads % size == 0 and even_groups and config.ffn_width % size == 0
