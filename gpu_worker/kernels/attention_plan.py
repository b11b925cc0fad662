"""How an attention step is cut into programs: tiles of query rows, and splits of the context.

Decided on the host from the shapes of the tensors alone, never from what they hold: a step of the
same shapes has the same grid, so a CUDA graph can be captured, and nothing waits for the device.

Axes: S sequences, N tokens of the step, G key/value heads, R query heads of one of them, D head
size. `context` is the longest that a sequence can be: the width of the block tables in tokens.
"""

from dataclasses import dataclass

MIN_SPLIT_TOKENS = 512  # below twice this a second launch costs more than it saves
MAX_SPLITS = 64  # a bound for the grid and for the reduction, however long the context
# Splits are added until there are that many programs: as many as run at once, and some to follow.
PROGRAMS_PER_PROCESSOR = {"few": 8, "many": 2}
FIXED_SPLIT_TOKENS = 1024
WORKSPACE_BYTES = 1 << 28  # partial results of one launch, unless one head needs more


@dataclass(frozen=True)
class Tile:
    """What one program holds, and how Triton is to compile it."""

    rows: int  # pairs of a token and a query head; more where a group has more heads
    tokens: int  # keys taken at a time
    warps: int
    stages: int  # of the loop: tiles of keys and values under way and in use


# By target and head size (the next power of two). `few` is for decoding, `many` for prompts, and
# `fixed` for both. Chosen so that nothing spills and, for decoding, a tile is under way while
# another is in use; docs/kernels.md has the registers and the shared memory that came of it.
TILES: dict[str, dict[int, dict[str, Tile]]] = {
    "blackwell": {
        64: {"few": Tile(16, 64, 4, 5), "many": Tile(64, 64, 4, 4), "fixed": Tile(64, 64, 4, 5)},
        128: {"few": Tile(16, 64, 4, 5), "many": Tile(128, 64, 8, 4), "fixed": Tile(64, 32, 4, 4)},
        256: {"few": Tile(16, 32, 4, 5), "many": Tile(128, 32, 8, 3), "fixed": Tile(64, 32, 8, 4)},
    },
    "hopper": {
        64: {"few": Tile(16, 64, 4, 5), "many": Tile(128, 64, 8, 4), "fixed": Tile(64, 64, 4, 5)},
        128: {"few": Tile(16, 64, 4, 5), "many": Tile(128, 64, 8, 4), "fixed": Tile(64, 64, 4, 4)},
        256: {"few": Tile(16, 32, 4, 5), "many": Tile(128, 32, 8, 3), "fixed": Tile(64, 32, 8, 4)},
    },
    "ampere": {
        64: {"few": Tile(16, 64, 4, 5), "many": Tile(128, 64, 8, 4), "fixed": Tile(64, 64, 4, 4)},
        128: {"few": Tile(16, 64, 4, 5), "many": Tile(128, 32, 8, 5), "fixed": Tile(64, 64, 8, 5)},
        256: {"few": Tile(16, 32, 4, 5), "many": Tile(64, 32, 8, 4), "fixed": Tile(64, 32, 8, 4)},
    },
    "cdna": {
        64: {"few": Tile(16, 64, 4, 2), "many": Tile(128, 32, 8, 2), "fixed": Tile(64, 32, 4, 2)},
        128: {"few": Tile(16, 64, 4, 2), "many": Tile(128, 32, 8, 2), "fixed": Tile(64, 32, 4, 2)},
        256: {"few": Tile(16, 32, 4, 2), "many": Tile(64, 32, 8, 2), "fixed": Tile(64, 32, 8, 2)},
    },
}


@dataclass(frozen=True)
class Schedule:
    """What the caller knows of the machine, and wants of the order of sums.

    With `deterministic`, tile and split are the same for every step: a row's result depends on its
    query and its context, and neither on the other rows nor on how prompts were cut into chunks.
    """

    num_processors: int = 132  # an H100's or H200's
    target: str = "hopper"
    deterministic: bool = False


@dataclass(frozen=True)
class Plan:
    tile: Tile
    rows: int  # of a tile: a power of two, at least 16, what a tensor core wants
    tokens_of_tile: int  # query tokens; times R they fill the rows, or leave some unused
    num_tiles: int  # in the grid: enough for any way that N rows may belong to S sequences
    split_tokens: int
    num_splits: int  # in the grid: enough for the longest context


def make_plan(
    num_rows: int,
    num_sequences: int,
    num_groups: int,
    heads_of_group: int,
    head_size: int,
    context: int,
    schedule: Schedule,
) -> Plan:
    kind = _kind(num_rows, num_sequences, heads_of_group, schedule)
    tile = TILES[schedule.target][max(64, next_power_of_two(head_size))][kind]
    rows = max(tile.rows, next_power_of_two(heads_of_group))
    tokens = rows // heads_of_group
    if kind == "few" and num_rows <= num_sequences:
        tokens = 1  # no tile of a decoding step has more than one
    tiles = num_rows if tokens == 1 else num_rows // tokens + num_sequences
    split = _split_tokens(kind, tiles * num_groups, context, schedule)
    return Plan(tile, rows, tokens, tiles, split, max(1, -(-context // split)))


def _kind(num_rows: int, num_sequences: int, heads_of_group: int, schedule: Schedule) -> str:
    """`few` where most tiles would be nearly empty otherwise."""
    if schedule.deterministic:
        return "fixed"
    return "few" if num_rows <= num_sequences * max(1, 16 // heads_of_group) else "many"


def _split_tokens(kind: str, programs: int, context: int, schedule: Schedule) -> int:
    """Tokens of a split: a multiple of what any tile takes at a time."""
    if kind == "fixed":
        return FIXED_SPLIT_TOKENS
    if context <= 2 * MIN_SPLIT_TOKENS:
        return 2 * MIN_SPLIT_TOKENS
    wanted = -(-PROGRAMS_PER_PROCESSOR[kind] * schedule.num_processors // max(1, programs))
    # One long context among short ones must not keep one program busy when all others are done.
    longest = 2048 if kind == "few" else 8192
    tokens = min(longest, max(MIN_SPLIT_TOKENS, context // wanted))
    return -(-max(tokens, -(-context // MAX_SPLITS)) // 128) * 128


def groups_of_launch(plan: Plan, num_rows: int, num_groups: int, bytes_of_row: int) -> int:
    """Key/value heads that one launch takes, so that its partial results fit the workspace."""
    if plan.num_splits == 1:
        return num_groups
    bytes_of_group = plan.num_splits * num_rows * bytes_of_row
    return min(num_groups, max(1, WORKSPACE_BYTES // bytes_of_group))


def next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
