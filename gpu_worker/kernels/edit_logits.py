"""Penalties, biases and bans: changes of single logits before a token is chosen.

Axes: S rows that sample, V vocabulary, K penalised logits, A additions.

    logits             [S, V]      float32, changed in place
    penalised_starts   [S + 1]     int; row s has [penalised_starts[s], penalised_starts[s + 1])
    penalised          [K]         int32 tokens, each once a row
    counts             [K]         int32; how often each is in the answer, 0: in the prompt alone
    repetition         [S]         float32; positive logits are divided by it, others multiplied
    presence           [S]         float32, subtracted thereafter where a token is in the answer
    frequency          [S]         float32, subtracted for each time that it is
    promised           [S]         int32: a token of the answer that no count has yet; -1: none
    added_starts       [S + 1]     int
    added              [A]         int32 tokens, which may repeat: then one after the other
    addend             [A]         float32; -inf is a ban

A promised token is one that the host does not know yet, as the step before has just drawn it: it
counts once more, whether or not it is among the penalised. A row without penalties (1, 0, 0) is
left as it is, whatever its promised token.

What is subtracted is summed in float64 and rounded once: `edits.py` does the same on the host.
"""

import torch
from torch import Tensor


def edit_logits_reference(
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
) -> None:
    """What `edit_logits` does."""
    for s, row in enumerate(logits):
        part = slice(*penalised_starts[s : s + 2].tolist())
        tokens, times = penalised[part].long(), counts[part]
        newest = int(promised[s])
        if newest >= 0 and newest not in tokens:
            tokens = torch.cat((tokens, promised[s : s + 1].long()))
            times = torch.cat((times, counts.new_zeros(1)))
        times = (times + (tokens == newest)).double()
        values = row[tokens]
        values = torch.where(values > 0, values / repetition[s], values * repetition[s])
        subtracted = presence[s].double() * (times > 0) + frequency[s].double() * times
        row[tokens] = values - subtracted.float()
        for i in range(*added_starts[s : s + 2].tolist()):
            row[int(added[i])] += addend[i]
