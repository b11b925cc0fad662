"""The operations of sampling on a device; shapes and contracts stand in the files of `kernels`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gpu_worker.kernels.edit_logits import edit_logits_reference
from gpu_worker.kernels.last_tokens import keep_tokens_reference, pick_tokens_reference
from gpu_worker.kernels.sample import sample_reference


class EditLogits(Protocol):
    def __call__(  # noqa: PLR0913, PLR0917  (one pass over all edits is its point)
        self,
        logits: Tensor,
        penalised_starts: Tensor,
        penalised: Tensor,
        counts: Tensor,
        repetition: Tensor,
        presence: Tensor,
        frequency: Tensor,
        promised: Tensor,
        added_starts: Tensor,
        added: Tensor,
        addend: Tensor,
    ) -> None: ...


class Sample(Protocol):
    def __call__(
        self,
        logits: Tensor,
        seed: Tensor,
        position: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        draws: bool,
    ) -> tuple[Tensor, Tensor]:
        """`draws`: some temperature may be above 0."""
        ...


@dataclass(frozen=True)
class SamplingOps:
    pick_tokens: Callable[[Tensor, Tensor, Tensor], Tensor]
    keep_tokens: Callable[[Tensor, Tensor, Tensor], None]
    edit_logits: EditLogits
    sample: Sample


def torch_sampling_ops() -> SamplingOps:
    """The references."""
    return SamplingOps(
        pick_tokens=pick_tokens_reference,
        keep_tokens=keep_tokens_reference,
        edit_logits=edit_logits_reference,
        sample=_sample_reference,
    )


def _sample_reference(
    logits: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    draws: bool,
) -> tuple[Tensor, Tensor]:
    if not draws:
        temperature = temperature * 0
    return sample_reference(logits, seed, position, temperature, top_k, top_p, min_p)
