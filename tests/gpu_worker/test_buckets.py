"""Shapes of graphs: what holds a step, what it costs in padding, and how many there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.buckets import cheapest, graph_shapes, is_decoding, largest_shape, warm_up_shapes
from gpu_worker.fields import Shape, num_bytes

LLAMA = (512, 256, 131_072, 16)  # tokens, rows, tokens of a request, tokens of a block


def step_of(tokens: int, sequences: int, context: int) -> Shape:
    return Shape(tokens, sequences, 0, -(-context // 16))


def test_there_are_not_too_many() -> None:
    assert len(graph_shapes(*LLAMA)) < 200
    assert len(graph_shapes(512, 256, 8192, 16)) < 100


def test_decoding_comes_first_and_each_kind_from_large_to_small() -> None:
    shapes = graph_shapes(*LLAMA)
    num_decoding = sum(map(is_decoding, shapes))
    for kind in (shapes[:num_decoding], shapes[num_decoding:]):
        sizes = [shape.num_tokens for shape in kind]
        assert sizes == sorted(sizes, reverse=True)
    assert all(map(is_decoding, shapes[:num_decoding]))
    assert shapes[0] == Shape(256, 256, 0, 8192)
    assert shapes[num_decoding] == Shape(512, 256, 0, 8192)


@given(st.integers(1, 256), st.integers(1, 131_072))
def test_every_decoding_step_has_a_graph(rows: int, context: int) -> None:
    step = step_of(rows, rows, context)
    shape = cheapest(graph_shapes(*LLAMA), step)
    assert shape is not None
    assert is_decoding(shape)
    assert rows <= shape.num_tokens <= max(2 * rows - 1, 1)
    assert step.table_width <= shape.table_width <= max(8 * step.table_width, 64)


@given(st.integers(2, 512), st.integers(1, 255), st.integers(1, 131_072))
def test_every_mixed_step_has_a_graph(tokens: int, rows: int, context: int) -> None:
    step = step_of(tokens, min(rows, tokens - 1), context)
    shape = cheapest(graph_shapes(*LLAMA), step)
    assert shape is not None
    assert not is_decoding(shape)
    assert tokens <= shape.num_tokens <= max(1.5 * tokens, 64)
    assert shape.num_sequences >= step.num_sequences


@pytest.mark.parametrize(
    "step", [step_of(513, 3, 20), step_of(257, 257, 20), step_of(5, 5, 131_073)], ids=str
)
def test_a_step_that_is_too_large_has_none(step: Shape) -> None:
    assert cheapest(graph_shapes(*LLAMA), step) is None


def test_the_least_is_taken() -> None:
    shapes = graph_shapes(*LLAMA)
    assert cheapest(shapes, step_of(5, 5, 900)) == Shape(8, 8, 0, 64)
    assert cheapest(shapes, step_of(5, 5, 1025)) == Shape(8, 8, 0, 512)
    assert cheapest(shapes, step_of(65, 9, 900)) == Shape(96, 64, 0, 64)
    assert cheapest(shapes, step_of(65, 8, 900)) == Shape(96, 8, 0, 64)


@pytest.mark.parametrize("bounds", [LLAMA, (1, 1, 1, 16), (7, 3, 100, 8), (192, 300, 512, 16)])
def test_no_shape_is_larger_than_the_largest(bounds: tuple[int, int, int, int]) -> None:
    largest = largest_shape(*bounds)
    for shape in (*graph_shapes(*bounds), *warm_up_shapes(*bounds)):
        assert shape.num_sequences <= shape.num_tokens <= largest.num_tokens
        assert shape.num_sequences <= largest.num_sequences
        assert shape.table_width <= largest.table_width
        assert num_bytes(shape) <= num_bytes(largest)
