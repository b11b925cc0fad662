"""Times of attention: decoding and prompts, caches of sixteen bits and of eight."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.attention_triton import attention
from tests.gpu import library
from tests.gpu.machine import Machine
from tests.gpu.timed import Timed
from tests.gpu_worker import attention_costs

BLOCK_SIZE = 16
STEPS = [(1, 1024), (16, 1024), (16, 8192), (64, 1024), (64, 8192), (256, 1024)]


def attention_times(machine: Machine) -> Iterator[Timed]:
    """The steps of docs/kernels.md, and batches beside them; eight bits have no match in torch."""
    for batch, context in machine.pick(STEPS, STEPS[1:2]):
        yield _decode(machine, batch, context, torch.bfloat16)
    for batch, context in machine.pick(STEPS[1:5], STEPS[1:2]):
        yield _decode(machine, batch, context, torch.float8_e4m3fn)
    for before in (0, 6144):
        yield _prompt(machine, 2048, before)


def _decode(machine: Machine, batch: int, context: int, cached: torch.dtype) -> Timed:
    cost = attention_costs.decode(batch, context, cached.itemsize)[1]
    rows, length = machine.pick((batch, context), (2, 33))
    step = _step(machine, [1] * rows, [length] * rows, cached)
    run = partial(attention, *step, step[0].shape[2] ** -0.5)
    if cached != torch.bfloat16:
        return Timed(cost, run, context=context)
    q, k_cache, v_cache, tables = step[:4]
    k, v = (_gathered(cache, tables, length) for cache in (k_cache, v_cache))
    return Timed(cost, run, "sdpa", partial(library.decode_attention, q, k, v), context)


def _prompt(machine: Machine, rows: int, before: int) -> Timed:
    cost = attention_costs.prompt(rows, before)[1]
    count, length = machine.pick((rows, before + rows), (17, 17))
    step = _step(machine, [count], [length], torch.bfloat16)
    run = partial(attention, *step, step[0].shape[2] ** -0.5)
    if before:
        return Timed(cost, run, context=before + rows)
    q, k_cache, v_cache, tables = step[:4]
    k, v = (_gathered(cache, tables, length)[0] for cache in (k_cache, v_cache))
    over = partial(library.prompt_attention, q.transpose(0, 1).contiguous(), k, v)
    return Timed(cost, run, "sdpa", over, before + rows)


def _step(
    machine: Machine, rows: list[int], lengths: list[int], cached: torch.dtype
) -> tuple[Tensor, ...]:
    """What `attention` takes, of random numbers, blocks in no order."""
    heads, groups, size = machine.pick((32, 8, 128), (4, 2, 16))
    device, width = machine.device, -(-max(lengths) // BLOCK_SIZE)
    num_blocks = width * len(rows)
    tables = torch.randperm(num_blocks).view(len(rows), width).int()
    shape = (num_blocks, groups, BLOCK_SIZE, size)
    caches = [
        torch.empty(shape, dtype=torch.bfloat16, device=device).normal_().to(cached)
        for _ in range(2)
    ]
    q = torch.randn(sum(rows), heads, size, device=device).bfloat16()
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    where = (tables, starts, torch.tensor(lengths).int())
    return q, *caches, *(each.to(device) for each in where)


def _gathered(cache: Tensor, tables: Tensor, length: int) -> Tensor:
    """[S, G, L, D] of equally long sequences, contiguous."""
    blocks = cache[tables.long()]  # [S, T, G, B, D]
    return blocks.transpose(1, 2).flatten(2, 3)[:, :, :length].contiguous()
