"""Times of linear layers with weights of sixteen, eight and four bits, and of widening."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from gpu_worker.kernels.fixed_matmul_triton import fixed_matmul
from gpu_worker.kernels.int4_matmul_triton import int4_matmul
from gpu_worker.kernels.small_matmul_triton import small_matmul
from gpu_worker.kernels.widen_triton import widen_bytes, widen_int4
from tests.gpu.machine import Machine
from tests.gpu.timed import Timed
from tests.gpu_worker.kernel_costs import Cost, E, F, fixed_costs, matmul_costs

BF16 = torch.bfloat16
GROUP = 128


def matmul_times(machine: Machine) -> Iterator[Timed]:
    """The layer from F to E, beside the library's over weights of sixteen bits."""
    num_out, num_in = machine.pick((E, F), (32, 128))
    weight = _weight(machine, num_out, num_in)
    octets, scale = _bytes(machine, num_out, num_in)
    packed = _packed(machine, num_out, num_in)
    for rows in machine.pick((1, 16, 64), (1,)):
        x = _x(machine, rows, num_in)
        costs = matmul_costs(rows)
        library = ("linear", partial(linear, x, weight))
        yield Timed(costs[0], partial(small_matmul, x, weight), *library)
        yield Timed(costs[1], partial(small_matmul, x, octets, scale), *library)
        yield Timed(costs[2], partial(int4_matmul, x, *packed), *library)
    for rows in machine.pick((1, 64, 8192), (1,)):
        x = _x(machine, rows, num_in)
        library = ("linear", partial(linear, x, weight))
        yield Timed(fixed_costs(rows)[0], partial(fixed_matmul, x, weight), *library)
    yield from _wide(machine)
    yield from _widened(machine)


def _wide(machine: Machine) -> Iterator[Timed]:
    """From E to 2F, in one order of sums."""
    num_out, num_in = machine.pick((2 * F, E), (64, 64))
    weight = _weight(machine, num_out, num_in)
    for rows in machine.pick((1, 64, 8192), (1,)):
        x = _x(machine, rows, num_in)
        library = ("linear", partial(linear, x, weight))
        yield Timed(fixed_costs(rows)[1], partial(fixed_matmul, x, weight), *library)


def _widened(machine: Machine) -> Iterator[Timed]:
    """Gate and up of 8B: 117 million weights."""
    num_out, num_in = machine.pick((2 * F, E), (32, 128))
    count = 2 * F * E
    packed, (octets, scale) = _packed(machine, num_out, num_in), _bytes(machine, num_out, num_in)
    cost = Cost("widen_int4", 2 * F, count // 2 + 8 * count // GROUP + 2 * count, 0)
    yield Timed(cost, partial(widen_int4, *packed, 1, BF16))
    cost = Cost("widen_bytes fp8", 2 * F, 3 * count, 0)
    yield Timed(cost, partial(widen_bytes, octets, scale, BF16))


def _x(machine: Machine, rows: int, num_in: int) -> Tensor:
    return torch.randn(machine.pick(rows, 2), num_in, device=machine.device).bfloat16()


def _weight(machine: Machine, num_out: int, num_in: int) -> Tensor:
    return torch.empty(num_out, num_in, dtype=BF16, device=machine.device).normal_()


def _bytes(machine: Machine, num_out: int, num_in: int) -> tuple[Tensor, Tensor]:
    weight = _weight(machine, num_out, num_in).to(torch.float8_e4m3fn)
    return weight, torch.rand(num_out, device=machine.device)


def _packed(machine: Machine, num_out: int, num_in: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random weights of four bits as `int4_matmul` takes them: all codes are weights."""
    groups, device = num_in // GROUP, machine.device
    codes = torch.randint(0, 256, (groups, num_out, GROUP // 2), device=device)
    scale = torch.rand(groups, num_out, device=device)
    return codes.to(torch.uint8), scale, torch.full_like(scale, 8.0)
