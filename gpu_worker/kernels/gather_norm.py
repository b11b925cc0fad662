"""The first and the last RMS norm of a model, with the gathering of their rows in the same pass.

Axes: N tokens of the step, R rows that sample, E model width, V vocabulary.

    embed_norm: tokens [N] int32, embedding [V, E], weight [E]
        out two of [N, E]: the embeddings normalised, and as they are (the first residual)
    last_norm: x and residual [N, E], last [R] int64 (rows of these), weight [E]
        out [R, E]: the rows of x + residual that sample, normalised

A token outside of [0, V) reads as a row of NaN rather than as another's memory.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.rms_norm import rms_norm_reference


def embed_norm_reference(
    tokens: Tensor, embedding: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """What `embed_norm` computes."""
    known = (tokens >= 0) & (tokens < len(embedding))
    rows = embedding[tokens.long().clamp(0, len(embedding) - 1)]
    rows = torch.where(known[:, None], rows, torch.nan)
    return rms_norm_reference(rows, weight, eps, None)


def last_norm_reference(
    x: Tensor, residual: Tensor, last: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """What `last_norm` computes."""
    return rms_norm_reference(x[last], weight, eps, residual[last])[0]
