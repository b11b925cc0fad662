"""Which shapes of steps are captured as graphs, and which of them a step is padded to; pure.

A graph's grid depends on shapes alone, so a step runs in the graph of any shape that is as large.
Decoding steps, with one token for each sequence, have graphs of their own: attention cuts them
differently. Block tables come in few widths, as attention splits a context by what they have room
for.
"""

from collections.abc import Iterable

from gpu_worker.fields import Shape

WIDTH_FACTOR = 8  # from one width of block tables to the next
FIRST_TOKENS = 1024  # that the narrowest tables hold: attention does not split such contexts
FIRST_MIXED = 64  # tokens of the smallest mixed step that has a graph of its own
SEQUENCES = (8, 64)  # of mixed steps, and as many as there may be


def graph_shapes(
    max_tokens: int, max_rows: int, max_request_tokens: int, block_size: int
) -> list[Shape]:
    """All shapes up to `max_tokens`, in the order in which they are worth their time.

    Decoding before mixed, and each of them from large to small: what is captured first takes the
    memory, and the others find room in it.
    """
    widths = _widths(max_request_tokens, block_size)
    decoding = [
        Shape(size, size, 0, width)
        for size in _sizes(min(max_tokens, max_rows), first=1)
        for width in widths
    ]
    mixed = [
        Shape(size, sequences, 0, width)
        for size in _sizes(max_tokens, first=FIRST_MIXED)
        for sequences in sorted({min(each, max_rows, size - 1) for each in (*SEQUENCES, max_rows)})
        for width in widths
        if sequences
    ]
    return [*sorted(decoding, key=_cost, reverse=True), *sorted(mixed, key=_cost, reverse=True)]


def warm_up_shapes(
    max_tokens: int, max_rows: int, max_request_tokens: int, block_size: int
) -> list[Shape]:
    """Steps that need all kernels between them which any step does, each once or twice.

    Decoding, chunks of a few tokens and chunks of many; few and many tokens; contexts that are
    split, and such that are not.
    """
    widths = _widths(max_request_tokens, block_size)
    return [
        Shape(size, sequences, sequences, width)
        for size in sorted({min(each, max_tokens) for each in (1, 16, 64, 256, max_tokens)})
        for sequences in sorted({min(size, max_rows), min(-(-size // 3), max_rows), 1})
        for width in sorted({widths[0], widths[-1]})
    ]


def largest_shape(
    max_tokens: int, max_rows: int, max_request_tokens: int, block_size: int
) -> Shape:
    """The step that takes the most memory."""
    sequences = min(max_tokens, max_rows)
    width = -(-max_request_tokens // block_size)
    return Shape(max_tokens, sequences, sequences, width)


def cheapest(shapes: Iterable[Shape], step: Shape) -> Shape | None:
    """The least of the captured shapes that holds a step, if one does."""
    fitting = [shape for shape in shapes if _holds(shape, step)]
    return min(fitting, key=_cost, default=None)


def _holds(shape: Shape, step: Shape) -> bool:
    return (
        shape.num_tokens >= step.num_tokens
        and shape.num_sequences >= step.num_sequences
        and shape.table_width >= step.table_width
        and is_decoding(shape) == is_decoding(step)
    )


def is_decoding(shape: Shape) -> bool:
    return shape.num_tokens == shape.num_sequences


def _cost(shape: Shape) -> tuple[int, int, int]:
    return shape.num_tokens, shape.table_width, shape.num_sequences


def _sizes(largest: int, first: int) -> list[int]:
    """1, 2, 4, 8, 12, 16, 24, 32, 48 …: no more than half of a step as large as that is padding."""
    powers = [1 << power for power in range(largest.bit_length())]
    between = [power * 3 // 2 for power in powers if power >= 8]
    sizes = {size for size in (*powers, *between) if first <= size < largest}
    return sorted(sizes | {largest})


def _widths(max_request_tokens: int, block_size: int) -> list[int]:
    widest = -(-max_request_tokens // block_size)
    widths, tokens = [], FIRST_TOKENS
    while -(-tokens // block_size) < widest:
        widths.append(-(-tokens // block_size))
        tokens *= WIDTH_FACTOR
    return [*widths, widest]
