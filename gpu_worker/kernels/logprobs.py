"""Log-probabilities of the tokens chosen and of the likeliest ones.

Axes: S rows that sample, V vocabulary, A alternatives that are wanted, at least 1.

    logits    [S, V]   float32 or bfloat16
    tokens    [S]      int64, the chosen ones
    out       [S] float32 of the chosen; [S, A] float32 and [S, A] int32: the likeliest, and
              their log-probabilities; of equal ones the first comes first

They are those of softmax(logits): whoever wants them before penalties calls this before those.
All of a row are NaN that has a NaN or +inf.
"""

import torch
from torch import Tensor


def logprobs_reference(
    logits: Tensor, tokens: Tensor, num_alternatives: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What `logprobs` computes."""
    every = logits.double().log_softmax(-1).float()
    order = logits.float().nan_to_num(-torch.inf, torch.inf, -torch.inf)
    top = order.sort(dim=-1, descending=True, stable=True).indices[:, :num_alternatives]
    chosen = every.gather(1, tokens[:, None])[:, 0]
    return chosen, every.gather(1, top), top.int()
