"""The newest token of each row, kept on the device: a step may begin before the host knows it.

Axes: N tokens of the step, S rows that sample, R rows of the worker.

    keep_tokens: last_tokens[rows[s]] = tokens[s]
        tokens        [S] int64, as `sample` draws them
        rows          [S] int32, each once; -1: nobody's, as padding of a graph has it
        last_tokens   [R] int32, changed in place
    pick_tokens: last_tokens[source[n]] where source[n] is at least 0, tokens[n] elsewhere
        tokens        [N] int32, what the host knows
        source        [N] int32: a row, or -1
        last_tokens   [R] int32
        out           [N] int32

With the host's tokens all -1, `pick_tokens` gives `edit_logits` what is promised.
"""

import torch
from torch import Tensor


def keep_tokens_reference(tokens: Tensor, rows: Tensor, last_tokens: Tensor) -> None:
    """What `keep_tokens` does."""
    is_row = rows >= 0
    last_tokens[rows[is_row].long()] = tokens[is_row].to(last_tokens.dtype)


def pick_tokens_reference(tokens: Tensor, source: Tensor, last_tokens: Tensor) -> Tensor:
    """What `pick_tokens` computes."""
    return torch.where(source >= 0, last_tokens[source.clamp(min=0).long()], tokens)
