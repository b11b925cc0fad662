"""The bus where workers agree on GPUs: one lease a GPU, which every pool of the server sees."""

from collections.abc import Sequence

from common import hashes
from common.bus import Lease
from common.redis_bus import keys
from common.redis_bus.reads import Reads


class GpuSide(Reads):
    async def gpu_leases(self, gpus: Sequence[str]) -> list[Lease]:
        return [hashes.read_lease(await self._hash(keys.gpu(gpu))) for gpu in gpus]

    async def gpu_take(self, gpu: str, holder: str, seen: Lease) -> Lease | None:
        return await self._take(keys.gpu(gpu), holder, seen)

    async def gpu_renew(self, gpu: str, lease: Lease) -> Lease | None:
        return await self._renew(keys.gpu(gpu), lease)

    async def gpu_leave(self, gpu: str, lease: Lease) -> None:
        await self._leave(keys.gpu(gpu), lease)
