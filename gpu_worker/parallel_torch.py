"""A group of ranks over torch.distributed: NCCL between GPUs, gloo between processes on CPUs."""

import socket
from datetime import timedelta

import torch
from torch import Tensor, distributed

from gpu_worker.shard import Shard

HOST = "127.0.0.1"  # ranks of one worker share a machine
# Nobody waits so long but for a rank that reads its weights. Ranks that end are noticed at once,
# by their processes (`followers`, `follower`); this is for one that lives and does nothing.
TIMEOUT = timedelta(minutes=10)


def listen() -> socket.socket:
    """Where the ranks are to meet, for nobody else to reach."""
    return socket.create_server((HOST, 0))


def meet(
    port: int, shard: Shard, device: torch.device, meeting: socket.socket | None = None
) -> "TorchGroup":
    """Waits until all ranks have come. Rank 0 brings the socket that listens on `port`."""
    store = distributed.TCPStore(  # type: ignore[attr-defined]  # torch does not list it
        HOST,
        port,
        shard.size,
        is_master=meeting is not None,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=None if meeting is None else meeting.detach(),
    )
    distributed.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        timeout=TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )
    return TorchGroup(shard, device)


class TorchGroup:
    """All ranks of this process's default group; see `parallel.Group`."""

    def __init__(self, shard: Shard, device: torch.device) -> None:
        self.shard = shard
        self._device = device

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        distributed.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.shard.size)]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    def smallest(self, number: int) -> int:
        found = torch.tensor(number, dtype=torch.int64, device=self._device)
        distributed.all_reduce(found, distributed.ReduceOp.MIN)
        return int(found)
