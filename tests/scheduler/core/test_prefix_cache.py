"""Hashes of blocks, against the tokens that they stand for."""

from hypothesis import given
from hypothesis import strategies as st

from common.messages import BlockId
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.prefix_index import PrefixIndex
from scheduler.core.request import Request
from tests.scheduler.core.driving import request

SIZE = 2
PROMPTS = st.lists(
    st.tuples(st.sampled_from("xy"), st.lists(st.integers(0, 1), min_size=1, max_size=9)),
    min_size=2,
    max_size=8,
)


def made(number: int, tenant: str, tokens: list[int]) -> Request:
    new = request(f"r{number}", 0, tokens=tuple(tokens))
    new.tenant = tenant
    return new


@given(PROMPTS)
def test_a_hit_is_of_the_same_tenant_and_of_the_same_tokens_from_the_first_on(
    prompts: list[tuple[str, list[int]]],
) -> None:
    cache = PrefixCache(PrefixIndex(1_000), SIZE, b"key")
    holds: dict[tuple[str, tuple[int, ...]], BlockId] = {}  # all tokens up to the block's end
    num_blocks = 0
    for number, (tenant, tokens) in enumerate(prompts):
        new = made(number, tenant, tokens)
        found = cache.match(new)
        expected = []
        for stop in range(SIZE, len(tokens), SIZE):
            block = holds.get((tenant, tuple(tokens[:stop])))
            if block is None:
                break
            expected.append(block)
        assert found == expected
        new.block_table = [
            *found,
            *(BlockId(num_blocks + i) for i in range(len(tokens) // SIZE - len(found))),
        ]
        num_blocks += len(tokens)
        cache.expect(new, len(found))
        new.num_computed = len(tokens)
        cache.publish(new)
        for i, block in enumerate(new.block_table):
            holds.setdefault((tenant, tuple(tokens[: SIZE * (i + 1)])), block)
        assert not cache.computing


def test_what_a_block_holds_is_told_by_the_first_that_computed_it() -> None:
    index = PrefixIndex(3)
    index.publish([BlockId(1)], [b"a"])
    index.publish([BlockId(2)], [b"a"])
    assert (index.blocks, index.contents) == ({b"a": 1}, [None, b"a", None])
    index.forget([BlockId(2)])
    assert index.blocks == {b"a": 1}
    index.forget([BlockId(1)])
    assert (index.blocks, index.contents) == ({}, [None] * 3)
