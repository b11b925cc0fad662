"""Changes of single logits in Triton; `edit_logits.py` says what they are.

Axes: S rows that sample, V vocabulary, K penalised logits, A additions.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


def edit_logits(
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
    penalties = (penalised_starts, penalised, counts, repetition, presence, frequency, promised)
    edits = (*penalties, added_starts, added, addend)
    assert logits.stride(1) == 1
    assert all(x.is_contiguous() for x in edits)
    assert len(counts) == len(penalised)
    if len(logits):
        _edit_logits_kernel[(len(logits),)](logits, logits.stride(0), *edits, BLOCK=BLOCK)


@triton.jit
def _edit_logits_kernel(
    logits_ptr,
    stride,
    penalised_starts_ptr,
    penalised_ptr,
    counts_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    promised_ptr,
    added_starts_ptr,
    added_ptr,
    addend_ptr,
    BLOCK: tl.constexpr,
):
    """One program for one row."""
    s = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + s * stride
    k = tl.arange(0, BLOCK)  # [BLOCK]
    repetition = tl.load(repetition_ptr + s)
    presence = tl.load(presence_ptr + s).to(tl.float64)
    frequency = tl.load(frequency_ptr + s).to(tl.float64)
    promised = tl.load(promised_ptr + s)
    is_listed = tl.zeros((BLOCK,), tl.int32)
    stop = tl.load(penalised_starts_ptr + s + 1)
    for start in range(tl.load(penalised_starts_ptr + s), stop, BLOCK):
        inside = start + k < stop
        token = tl.load(penalised_ptr + start + k, mask=inside, other=-2)
        count = tl.load(counts_ptr + start + k, mask=inside, other=0) + (token == promised)
        is_listed |= token == promised
        value = tl.load(row_ptr + token, mask=inside, other=0.0)
        value = _penalise(value, count, repetition, presence, frequency)
        tl.store(row_ptr + token, value, mask=inside)
    if (promised >= 0) & (tl.max(is_listed, axis=0) == 0):
        value = tl.load(row_ptr + promised)
        tl.store(row_ptr + promised, _penalise(value, 1, repetition, presence, frequency))

    first = tl.load(added_starts_ptr + s)
    stop = tl.load(added_starts_ptr + s + 1)
    if stop > first:
        tl.debug_barrier()  # another thread may have penalised what is added to
    for start in range(first, stop, BLOCK):
        inside = start + k < stop
        token = tl.load(added_ptr + start + k, mask=inside, other=-1)
        value = tl.load(row_ptr + token, mask=inside, other=0.0)
        # Additions to one token come one after the other, in each place that names it: so these
        # places all hold the same in the end, and it does not matter which of them is stored last.
        for i in range(start, tl.minimum(start + BLOCK, stop)):
            addend = tl.load(addend_ptr + i)
            value = tl.where(token == tl.load(added_ptr + i), value + addend, value)
        tl.debug_barrier()  # all have read
        tl.store(row_ptr + token, value, mask=inside)
        tl.debug_barrier()  # a token may come again in the next block


@triton.jit
def _penalise(value, count, repetition, presence, frequency):
    """A logit after its penalties. In float64 a product is exact, so it may be fused with the sum
    and rounds to the same: not so in float32, where the host's sum would differ."""
    value = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    subtracted = tl.where(count > 0, presence, 0.0) + frequency * count
    return value - subtracted.to(tl.float32)
