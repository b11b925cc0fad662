"""A worker's side of the bus: plans in, results out."""

from collections.abc import Mapping

from common import codec, entries
from common.bus import Commit, Plans
from common.entries import behind, step_id
from common.messages import GatewayId, StepResult, TokenBatch, WorkerHello, WorkerId
from common.redis_bus import wire
from common.redis_bus.reads import Reads
from common.redis_bus.wire import Arg

COMMITS = {commit.value.encode(): commit for commit in Commit}


class WorkerSide(Reads):
    async def register(self, hello: WorkerHello) -> None:
        worker, value = hello.worker_id, codec.encode_hello(hello)
        await self._redis.call(*wire.call("register", (self._keys.workers,), worker, value))
        keys = (self._keys.workers, self._keys.results(worker))
        await self._redis.call(*wire.call("open", keys, worker))

    async def beat(self, hello: WorkerHello) -> bool:
        value = codec.encode_hello(hello)
        reply = await self._redis.call(
            *wire.call("beat", (self._keys.workers,), hello.worker_id, value)
        )
        return bool(reply == 1)

    async def read_plans(self, worker: WorkerId, after: int, block_seconds: float) -> Plans:
        key = self._keys.steps(worker)
        reply = await self._redis.read(("XREAD",), block_seconds, key, behind(after))
        return entries.read_plans(self._keys.name_of(key), wire.streams(reply).get(key, []))

    async def commit(
        self, worker: WorkerId, result: StepResult, notices: Mapping[GatewayId, TokenBatch]
    ) -> Commit:
        messages: list[Arg] = []
        for gateway, batch in notices.items():
            messages += (self._keys.tokens(gateway), codec.encode_token_batch(batch))
        reply = await self._redis.call(
            *wire.call(
                "commit",
                (self._keys.results(worker),),
                step_id(result.step),
                codec.encode_result(result),
                *messages,
            )
        )
        return COMMITS[reply]
