"""What a checkpoint on disk is to whoever loads it, whatever its format."""

from typing import Protocol

from torch import Tensor

from gpu_worker.model_config import ModelConfig
from gpu_worker.quantised_formats import Format


class WeightFile(Protocol):
    """Weights by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`)."""

    config: ModelConfig
    formats: tuple[Format, ...]  # that layers may have; none: all weights are floats

    def names(self) -> set[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def num_bytes(self, name: str) -> int:
        """Of the tensor in the file."""
        ...

    def read(self, name: str, *part: slice) -> Tensor:
        """One tensor, or `part` of it, on the CPU, as it is. Nothing else of it is read.

        It may be a view of the file, which stays mapped as long as there is such a tensor. Raises
        ModelError if it cannot be read.
        """
        ...
