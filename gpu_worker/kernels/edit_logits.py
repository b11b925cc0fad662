"""Penalties, biases and bans: changes of single logits before a token is chosen.

Axes: S rows that sample, V vocabulary, K penalised logits, A additions.

    logits             [S, V]      float32, changed in place
    penalised_starts   [S + 1]     int32; row s has [penalised_starts[s], penalised_starts[s + 1])
    penalised          [K]         int32 tokens, each once a row
    repetition         [K]         float32; positive logits are divided by it, others multiplied
    subtracted         [K]         float32, thereafter: by presence and frequency
    added_starts       [S + 1]     int32
    added              [A]         int32 tokens, which may repeat: then one after the other
    addend             [A]         float32; -inf is a ban
"""

import torch
from torch import Tensor


def edit_logits_reference(
    logits: Tensor,
    penalised_starts: Tensor,
    penalised: Tensor,
    repetition: Tensor,
    subtracted: Tensor,
    added_starts: Tensor,
    added: Tensor,
    addend: Tensor,
) -> None:
    """What `edit_logits` does."""
    for s, row in enumerate(logits):
        part = slice(*penalised_starts[s : s + 2].tolist())
        tokens = penalised[part].long()
        values = row[tokens]
        values = torch.where(values > 0, values / repetition[part], values * repetition[part])
        row[tokens] = values - subtracted[part]
        for i in range(*added_starts[s : s + 2].tolist()):
            row[int(added[i])] += addend[i]
