"""A plan as tensors, against the same worked out token by token."""

import time

import numpy as np
import torch

from common.messages import BlockId, Chunk, Ending, RequestId, RowStart, Sampling
from gpu_worker.batch import Batch, build
from gpu_worker.engine import Capacity
from gpu_worker.rows import Row, Rows, TokenCounts

BLOCK_SIZE = 4
CAPACITY = Capacity("m", "cpu", 1 << 16, BLOCK_SIZE, 256, 4096, 256)
CPU = torch.device("cpu")


def make_rows(capacity: Capacity = CAPACITY) -> Rows:
    return Rows(capacity, vocab_size=1000)


def add_row(
    rows: Rows,
    name: str,
    tokens: list[int],
    num_prompt: int,
    first_block: int,
    num_computed: int = 0,
) -> Row:
    request_id = RequestId(name)
    sampling = Sampling(seed=len(name), top_k=num_prompt)
    rows.start(
        RowStart(request_id, tuple(tokens), num_prompt, sampling, Ending(9), (), num_computed)
    )
    row = rows[request_id]
    count = -(-len(tokens) // BLOCK_SIZE)
    rows.append_blocks(row, [BlockId(first_block - 2 * i) for i in range(count)])
    return row


def batch_of(rows: Rows, *chunks: tuple[Row, int, int, bool]) -> Batch:
    """Chunks as (row, start, count, samples)."""
    named = [
        (row, Chunk(row.request_id, start, count, (), samples))
        for row, start, count, samples in chunks
    ]
    return build(rows, named, BLOCK_SIZE, CPU)


def test_a_mixed_step_token_by_token() -> None:
    rows = make_rows()
    prefilling = add_row(rows, "a.0", list(range(100, 123)), 23, first_block=50, num_computed=5)
    decoding = add_row(rows, "b.0", list(range(200, 210)), 6, first_block=61, num_computed=9)
    short = add_row(rows, "c.0", [300], 1, first_block=70)
    batch = batch_of(rows, (prefilling, 5, 7, False), (decoding, 9, 1, True), (short, 0, 1, True))
    inputs = batch.inputs
    assert inputs.tokens.tolist() == [*range(105, 112), 209, 300]
    assert inputs.positions.tolist() == [*range(5, 12), 9, 0]
    tables = {0: 50, 1: 61, 2: 70}
    owners = [0] * 7 + [1, 2]
    for slot, position, owner in zip(
        inputs.slot_mapping.tolist(), inputs.positions.tolist(), owners, strict=True
    ):
        block = tables[owner] - 2 * (position // BLOCK_SIZE)
        assert slot == block * BLOCK_SIZE + position % BLOCK_SIZE
    assert inputs.cu_seqlens.tolist() == [0, 7, 8, 9]
    assert inputs.lengths.tolist() == [12, 10, 1]
    assert inputs.block_tables.shape == (3, 3)  # no wider than the longest of this step
    assert inputs.block_tables[0].tolist() == [50, 48, 46]
    assert inputs.last.tolist() == [7, 8]
    assert batch.sampling == [decoding, short]
    assert batch.columns.position.tolist() == [4, 0]
    assert batch.columns.top_k.tolist() == [6, 1]
    dtypes = [inputs.positions.dtype, inputs.block_tables.dtype, inputs.slot_mapping.dtype]
    assert dtypes == [torch.int32, torch.int32, torch.int64]


def test_a_row_index_is_used_again_and_nothing_is_left_of_the_last_one() -> None:
    rows = make_rows(Capacity("m", "cpu", 99, BLOCK_SIZE, 64, 64, max_rows=1))
    add_row(rows, "a.0", list(range(20)), 20, first_block=50)
    rows.release(RequestId("a.0"))
    rows.release(RequestId("a.0"))  # twice is once
    row = add_row(rows, "b.0", [7, 8], 2, first_block=60)
    batch = batch_of(rows, (row, 0, 2, True))
    assert batch.inputs.tokens.tolist() == [7, 8]
    assert batch.inputs.block_tables.tolist() == [[60]]
    assert len(rows) == 1


def test_sampled_tokens_are_computed_next() -> None:
    rows = make_rows()
    row = add_row(rows, "a.0", [7, 8, 9], 3, first_block=50)
    assert rows.append_token(row, 42) == (0, None)
    rows.num_computed[row.index] = 3
    assert batch_of(rows, (row, 3, 1, True)).inputs.tokens.tolist() == [42]
    assert rows.append_token(row, 43) == (1, None)


def test_token_counts_grow() -> None:
    counts = TokenCounts([5, 5, 6], [6, 7])
    for token in [*range(100), *range(50)]:
        counts.add(token)
    found = dict(zip(counts.tokens.tolist(), counts.counts.tolist(), strict=True))
    expected = {token: 2 if token < 50 else 1 for token in range(100)}
    expected[6] += 1
    expected[7] += 1
    assert found == expected


def test_a_large_step_is_built_in_little_time() -> None:
    """256 rows that decode, with seeds and filters: far below what the model takes."""
    rows = make_rows()
    everyone = [add_row(rows, f"r.{i}", [1] * 200, 100, 1000, num_computed=199) for i in range(256)]
    chunks = [(row, 199, 1, True) for row in everyone]
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        batch_of(rows, *chunks)
        seconds.append(time.perf_counter() - began)
    assert np.min(seconds) < 0.005
