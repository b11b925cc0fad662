"""With a fixed order of sums a row's result has the same bits in every step."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.gpu_worker.attention_cases import FIXED, Sequences, attend, rows_of
from tests.gpu_worker.kernel_cases import Shape, Step, make_step

SHAPE = Shape(2, 1, 64, 16)
TOGETHER: Sequences = [(1, 1100), (33, 1040), (1, 7), (1, 64), (5, 70)]


def attend_fixed(step: Step, window: int, softcap: float) -> Tensor:
    return attend(step, FIXED, window=window, softcap=softcap)


@pytest.mark.parametrize(
    ("window", "softcap", "dtype"),
    [
        pytest.param(0, 0.0, torch.float32, id="fp32"),
        pytest.param(0, 2.0, torch.bfloat16, id="softcap-bf16"),
        pytest.param(40, 0.0, torch.float32, id="window"),
    ],
)
def test_rows_alone_have_the_bits_that_they_have_among_others(
    window: int, softcap: float, dtype: torch.dtype
) -> None:
    step = make_step(TOGETHER, SHAPE, dtype)
    together = attend_fixed(step, window, softcap)
    for s, (rows, _) in enumerate(TOGETHER):
        first = int(step.cu_seqlens[s])
        alone = attend_fixed(rows_of(step, s, 0, rows), window, softcap)
        assert torch.equal(alone, together[first : first + rows])


@pytest.mark.parametrize("window", [0, 40])
def test_rows_have_the_same_bits_however_a_prompt_is_cut(window: int) -> None:
    """In chunks that begin in the midst of a tile and of a block, down to single rows."""
    step = make_step([(40, 1040)], SHAPE, torch.float32)  # one split for some rows, two for others
    whole = attend_fixed(step, window, 0.0)
    for cuts in ([0, 7, 40], [0, 19, 20, 40]):
        for start, stop in pairwise(cuts):
            part = attend_fixed(rows_of(step, 0, start, stop), window, 0.0)
            assert torch.equal(part, whole[start:stop])


def test_a_wider_block_table_changes_no_bits() -> None:
    step = make_step([(1, 900), (3, 30)], SHAPE, torch.float32)
    wider = torch.nn.functional.pad(step.block_tables, (0, 300), value=-1)
    assert torch.equal(
        attend_fixed(replace(step, block_tables=wider), 0, 0.0), attend_fixed(step, 0, 0.0)
    )


def test_without_it_bits_may_differ() -> None:
    """Or the tests above would show nothing."""
    step = make_step([(1, 1500)], SHAPE, torch.float32)
    assert not torch.equal(attend(step), attend_fixed(step, 0, 0.0))
