"""A plan as tensors, against the same worked out token by token."""

import time

import numpy as np

from common.messages import BlockId, Chunk, Ending, RequestId, RowStart, Sampling
from gpu_worker.batch import Batch, build
from gpu_worker.engine import Capacity
from gpu_worker.fields import Shape, host_fields, num_bytes
from gpu_worker.rows import PROMISED, Row, Rows, TokenCounts

BLOCK_SIZE = 4
CAPACITY = Capacity("m", "cpu", 1 << 16, BLOCK_SIZE, 256, 4096, 256)


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
    return build(rows, named, BLOCK_SIZE)


def test_a_mixed_step_token_by_token() -> None:
    rows = make_rows()
    prefilling = add_row(rows, "a.0", list(range(100, 123)), 23, first_block=50, num_computed=5)
    decoding = add_row(rows, "b.0", list(range(200, 210)), 6, first_block=61, num_computed=9)
    short = add_row(rows, "c.0", [300], 1, first_block=70)
    batch = batch_of(rows, (prefilling, 5, 7, False), (decoding, 9, 1, True), (short, 0, 1, True))
    inputs = batch.fields()
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
    assert inputs.position.tolist() == batch.position.tolist() == [4, 0]
    assert inputs.top_k.tolist() == [6, 1]
    assert inputs.seed.tolist() == [3, 3]
    assert inputs.row.tolist() == [decoding.index, short.index]
    assert inputs.newest.tolist() == [-1, -1]


def test_a_row_index_is_used_again_and_nothing_is_left_of_the_last_one() -> None:
    rows = make_rows(Capacity("m", "cpu", 99, BLOCK_SIZE, 64, 64, max_rows=1))
    add_row(rows, "a.0", list(range(20)), 20, first_block=50)
    rows.release(RequestId("a.0"))
    rows.release(RequestId("a.0"))  # twice is once
    row = add_row(rows, "b.0", [7, 8], 2, first_block=60)
    fields = batch_of(rows, (row, 0, 2, True)).fields()
    assert fields.tokens.tolist() == [7, 8]
    assert fields.block_tables.tolist() == [[60]]
    assert len(rows) == 1


def test_a_sampled_token_is_promised_and_then_known() -> None:
    rows = make_rows()
    other = add_row(rows, "a.0", [7, 8, 9], 3, first_block=40)
    row = add_row(rows, "b.0", [7, 8, 9], 3, first_block=50)
    rows.promise([row], np.array([row.index]))
    rows.num_computed[row.index] = 3
    chunks = (other, 0, 2, False), (row, 3, 1, True)
    fields = batch_of(rows, *chunks).fields()
    assert fields.tokens.tolist() == [7, 8, PROMISED]
    assert fields.source.tolist() == [-1, -1, row.index]
    assert (fields.newest.tolist(), fields.position.tolist()) == ([row.index], [1])
    assert rows.settle(row, 0, 42) is None
    fields = batch_of(rows, *chunks).fields()
    assert fields.tokens.tolist() == [7, 8, 42]
    assert fields.source.tolist() == [-1, -1, -1]
    assert fields.newest.tolist() == [-1]


def test_a_token_of_a_row_that_was_released_does_not_touch_the_next_one() -> None:
    rows = make_rows(Capacity("m", "cpu", 99, BLOCK_SIZE, 64, 64, max_rows=1))
    row = add_row(rows, "a.0", [7, 8], 2, first_block=50)
    rows.promise([row], np.array([row.index]))
    rows.release(row.request_id)
    add_row(rows, "b.0", [1, 2, 3, 4], 4, first_block=60)
    assert rows.settle(row, 0, 42) is None
    assert rows.tokens[0, :5].tolist() == [1, 2, 3, 4, 0]


def test_padding_belongs_to_nobody() -> None:
    rows = make_rows()
    chunking = add_row(rows, "a.0", list(range(100, 123)), 23, first_block=50, num_computed=5)
    decoding = add_row(rows, "b.0", list(range(200, 210)), 6, first_block=61, num_computed=9)
    batch = batch_of(rows, (chunking, 5, 7, False), (decoding, 9, 1, True))
    assert batch.shape == Shape(8, 2, 1, 3)
    plain, shape = batch.fields(), Shape(12, 5, 1, 6)
    memory = np.full(num_bytes(shape), 0x7F, np.uint8)
    padded = host_fields(memory, shape)
    batch.fill(padded)
    for name in ("tokens", "source", "positions", "slot_mapping", "lengths"):
        values, expected = getattr(padded, name), getattr(plain, name)
        assert values[: len(expected)].tolist() == expected.tolist()
    assert padded.slot_mapping[8:].tolist() == padded.source[8:].tolist() == [-1] * 4
    assert padded.tokens[8:].tolist() == padded.positions[8:].tolist() == [0] * 4
    assert padded.cu_seqlens.tolist() == [0, 7, 8, 8, 8, 8]
    assert padded.lengths[2:].tolist() == [0] * 3
    assert padded.block_tables[:2, :3].tolist() == plain.block_tables.tolist()
    assert padded.last.tolist() == plain.last.tolist()


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
        batch_of(rows, *chunks).fields()
        seconds.append(time.perf_counter() - began)
    assert np.min(seconds) < 0.005
