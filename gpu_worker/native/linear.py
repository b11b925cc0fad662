"""Linear layers with packed weights, and what the C code takes of tensors."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpu_worker.native.library import LANES, Function

ByRows = Callable[[int], Function]


class PackedLinear:
    """x [N, in] to x W^T + b [N, out]. Each row's result is the same whatever N is."""

    def __init__(self, linear: ByRows, pack: Function, weight: Tensor, bias: Tensor | None) -> None:
        self._linear = linear
        self._out, self._in = weight.shape
        self._dtype, self._is_bf16 = weight.dtype, weight.dtype == torch.bfloat16
        padded = -(-self._out // LANES) * LANES
        self._packed = weight.new_empty(padded * self._in)
        pack(
            weight.contiguous().data_ptr(),
            self._packed.data_ptr(),
            self._out,
            self._in,
            self._is_bf16,
        )
        self._bias = None if bias is None else torch.zeros(padded)
        if self._bias is not None and bias is not None:
            self._bias[: self._out] = bias
        self.packed_pointer = self._packed.data_ptr()
        self.bias_pointer = None if self._bias is None else self._bias.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, width = x.shape
        assert width == self._in
        assert are(self._dtype, x)
        y = x.new_empty(num_rows, self._out)
        self._linear(num_rows)(
            x.data_ptr(),
            self.packed_pointer,
            self.bias_pointer,
            y.data_ptr(),
            num_rows,
            width,
            self._out,
            self._is_bf16,
        )
        return y


def fits(x: Tensor, width: int) -> bool:
    return x.dtype in (torch.bfloat16, torch.float32) and width % LANES == 0


def are(dtype: torch.dtype, *tensors: Tensor) -> bool:
    """Whether the C code can take them as arrays of that type."""
    for x in tensors:  # noqa: SIM110 - a generator costs twice as much, 450 times a step
        if x.dtype is not dtype or not x.is_contiguous():
            return False
    return True
