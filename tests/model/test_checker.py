"""The checker itself, on models of a few states."""

from collections.abc import Iterator

from tests.model.checker import Model, Move, explore


def counter(limit: int, *, forbidden: int = -1, rests_at: int) -> Model[int]:
    """Counts up to `limit`; a fault sets it back to zero."""

    def moves(state: int) -> Iterator[Move[int]]:
        if state < limit:
            yield Move("up", state + 1)
        yield Move("reset", 0, is_fault=True)

    return Model(
        0,
        moves,
        lambda state: "forbidden" if state == forbidden else None,
        lambda state: state == rests_at,
    )


def test_sees_every_state() -> None:
    verdict = explore(counter(5, rests_at=5))
    assert verdict.wrong is None
    assert verdict.num_states == 6


def test_finds_the_shortest_way_to_a_broken_invariant() -> None:
    verdict = explore(counter(5, forbidden=3, rests_at=5))
    assert verdict.wrong == "forbidden"
    assert verdict.trace == ("up", "up", "up")


def test_finds_where_rest_is_out_of_reach_without_faults() -> None:
    verdict = explore(counter(5, rests_at=2))
    assert verdict.wrong == "never comes to rest"
    assert verdict.trace == ("up", "up", "up")


def test_says_that_it_was_cut() -> None:
    verdict = explore(counter(10**9, rests_at=0), max_states=100)
    assert not verdict.complete
