"""Reading back what was missed, while everything moves between the reads."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from common.bus import Log
from common.messages import (
    Ended,
    FinishReason,
    Journal,
    JournalHead,
    RequestId,
    Sampled,
    StepResult,
    WorkerId,
)
from gateway.repair import Found, merge, repair

REQUEST = RequestId("s.0")
OTHER = RequestId("s.1")
HEAD = JournalHead(REQUEST, "1-0", 1, "anonymous", "", {})


def token_at(position: int) -> int:
    return 100 + position


def answer(start: int, stop: int) -> tuple[int, ...]:
    return tuple(map(token_at, range(start, stop)))


def logged(*positions: int) -> dict[int, int]:
    return {position: token_at(position) for position in positions}


def test_log_and_journal_overlap_as_they_like() -> None:
    journal = Journal(HEAD, answer(0, 4))
    assert merge(0, logged(2, 3, 4, 5), journal) == Found(answer(0, 6))
    assert merge(3, logged(2, 3, 4, 5), journal) == Found(answer(3, 6))
    assert merge(5, logged(4, 5), journal) == Found(answer(5, 6))
    assert merge(6, logged(4, 5), journal) == Found(())


def test_a_hole_is_no_answer() -> None:
    assert merge(0, logged(5, 6), Journal(HEAD, answer(0, 4))) is None
    assert merge(4, logged(6), Journal(HEAD, answer(0, 4))) is None
    assert merge(0, logged(4, 6), Journal(HEAD, answer(0, 4))) is None


def test_nothing_after_the_end() -> None:
    end = Ended(REQUEST, 3, FinishReason.STOP)
    assert merge(1, logged(3, 4), Journal(HEAD, answer(0, 5), end)) == Found(answer(1, 3), end)


def test_an_end_whose_tokens_nobody_can_bring_is_an_error() -> None:
    """Somebody wrote into the journal. Who has seen all of the answer already has it."""
    journal = Journal(HEAD, answer(0, 2), Ended(REQUEST, 5, FinishReason.STOP, cached_tokens=1))
    end = Ended(REQUEST, 2, FinishReason.ERROR, "its journal is damaged", cached_tokens=1)
    assert merge(0, {}, journal) == Found(answer(0, 2), end)
    assert merge(4, {}, journal) == Found((), replace(end, kept=4))
    assert merge(5, {}, journal) == Found((), journal.end)


def test_no_journal_yet() -> None:
    assert merge(0, {}, Journal(None)) == Found((), has_journal=False)


def test_a_journal_whose_head_is_damaged_is_one() -> None:
    assert merge(2, logged(4), Journal(None, answer(0, 4))) == Found(answer(2, 5))


class MovingPool:
    """A gateway's reads, with moves of the pool before each of them, as Hypothesis draws them."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.count = 0  # tokens committed
        self.journal_count = 0
        self.logs: dict[WorkerId, dict[int, int]] = {WorkerId("w0"): {}}
        self.owner_id: WorkerId | None = WorkerId("w0")
        self.end: Ended | None = None
        self.log_reads = 0

    def move(self) -> None:
        for _ in range(self.data.draw(st.integers(0, 3))):
            moves = [self.commit, self.flush, self.trim, self.change_owner, self.finish]
            self.data.draw(st.sampled_from(moves))()

    def commit(self) -> None:
        if self.owner_id is not None:
            self.logs[self.owner_id][self.count] = token_at(self.count)
            self.count += 1

    def flush(self) -> None:
        self.journal_count = self.count

    def trim(self) -> None:
        """Only behind what is in the journal."""
        for worker, log in self.logs.items():
            kept = {p: token for p, token in log.items() if p >= self.journal_count}
            self.logs[worker] = kept

    def change_owner(self) -> None:
        """A worker is lost: its log is read, the journal flushed, another one goes on."""
        if self.owner_id is not None:
            self.flush()
            self.owner_id = WorkerId(f"w{len(self.logs)}")
            self.logs[self.owner_id] = {}

    def finish(self) -> None:
        if self.owner_id is not None:
            self.flush()
            self.end = Ended(REQUEST, self.count, FinishReason.STOP)
            self.owner_id = None

    async def owner(self, _request: RequestId) -> WorkerId | None:
        self.move()
        return self.owner_id

    async def read_log(self, worker: WorkerId, after: int) -> Log:
        self.move()
        self.log_reads += 1
        assert after == 0
        log = self.logs[worker]
        steps = [StepResult(p + 1, (Sampled(REQUEST, p, log[p]),), 0.0) for p in sorted(log)]
        return Log(tuple(steps))

    async def journal(self, _request: RequestId) -> Journal:
        self.move()
        return Journal(HEAD, answer(0, self.journal_count), self.end)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
async def test_whatever_moves_meanwhile_nothing_is_wrong_or_missing(data: st.DataObject) -> None:
    pool = MovingPool(data)
    pool.move()
    start = data.draw(st.integers(0, pool.count))
    at_least = pool.count
    found = (await repair(pool, {REQUEST: start}))[REQUEST]  # type: ignore[arg-type]
    if found is not None:
        assert found.tokens == answer(start, start + len(found.tokens))
        assert start + len(found.tokens) >= at_least
        if found.end is not None:
            assert found.end == pool.end
            assert start + len(found.tokens) == found.end.kept


@settings(deadline=None)
@given(data=st.data())
async def test_a_pool_at_rest_is_read_at_once(data: st.DataObject) -> None:
    pool = MovingPool(data)
    for _ in range(4):
        pool.move()
    pool.move = lambda: None  # type: ignore[method-assign]
    found = (await repair(pool, {REQUEST: 0}))[REQUEST]  # type: ignore[arg-type]
    assert found == Found(answer(0, pool.count), pool.end)


async def test_an_owner_that_changed_is_asked_again() -> None:
    class Pool(MovingPool):
        def __init__(self) -> None:
            self.owners = iter([WorkerId("w0"), WorkerId("w1")])
            self.logs = {WorkerId("w0"): logged(0, 1)}
            self.journal_count, self.end, self.log_reads = 2, None, 0

        def move(self) -> None:
            pass

        async def owner(self, _request: RequestId) -> WorkerId | None:
            return next(self.owners)

    assert await repair(Pool(), {REQUEST: 0}) == {REQUEST: None}  # type: ignore[arg-type]


async def test_a_log_is_read_once_for_all_requests() -> None:
    class Pool(MovingPool):
        def __init__(self) -> None:
            self.log_reads = 0
            self.logs = {WorkerId("w0"): logged(0, 1)}
            self.owner_id = WorkerId("w0")
            self.journal_count, self.end = 0, None

        def move(self) -> None:
            pass

    pool = Pool()
    requests = {RequestId(f"s.{i}"): 0 for i in range(100)}
    found = await repair(pool, requests)  # type: ignore[arg-type]
    assert pool.log_reads == 1
    assert found[REQUEST] == Found(answer(0, 2))
    assert all(found[request] == Found(()) for request in requests if request != REQUEST)
