"""Linear layers with quantised weights in Triton.

Importing this module imports triton, which a machine without a GPU need not have.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.int4_matmul_triton import int4_matmul
from gpu_worker.kernels.small_matmul import MAX_ROWS
from gpu_worker.kernels.small_matmul_triton import small_matmul
from gpu_worker.kernels.widen_triton import widen_bytes, widen_int4
from gpu_worker.ops import Linear
from gpu_worker.quantised import ByteWeight, GroupedWeight, QuantisedWeight

# Up to here weights are widened as they are read, a byte or half of one each. Above, they are
# widened into memory first, for the library's product. Predicted for gate and up of Llama 3.1 8B
# on an H200, four bits: 30 microseconds for 64 rows, and for 128, which unpack twice, some 80;
# widening takes 82, and the library 64 to read what that wrote.
FEW_ROWS = 2 * MAX_ROWS


def pack_quantised(weight: QuantisedWeight, bias: Tensor | None) -> Linear:
    """A linear layer; keeps `weight` and `bias`."""
    assert all(tensor.is_contiguous() for tensor in weight.tensors())
    if isinstance(weight, ByteWeight):
        return ByteLinear(weight, bias)
    return GroupedLinear(weight, bias)


class ByteLinear:
    """x [N, I] to x W^T + b [N, O]."""

    def __init__(self, weight: ByteWeight, bias: Tensor | None) -> None:
        self.weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        values, scale = self.weight.tensors()
        if len(x) <= FEW_ROWS:
            return small_matmul(x, values, scale, self._bias)
        return torch.nn.functional.linear(x, widen_bytes(values, scale, x.dtype), self._bias)


class GroupedLinear:
    """x [N, I] to x W^T + b [N, O]."""

    def __init__(self, weight: GroupedWeight, bias: Tensor | None) -> None:
        self.weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        packed, scale, zero, planes = (
            self.weight.packed,
            self.weight.scale,
            self.weight.zero,
            self.weight.planes,
        )
        if self.weight.order is not None:
            x = x[:, self.weight.order]
        if len(x) <= FEW_ROWS:
            # Each plane sees all inputs, and what they give adds up.
            x = x if planes == 1 else x.repeat(1, planes)
            return int4_matmul(x, packed, scale, zero, self._bias)
        wide = widen_int4(packed, scale, zero, planes, x.dtype)
        return torch.nn.functional.linear(x, wide, self._bias)
