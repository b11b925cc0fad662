"""Linear layers with packed weights, and what the C code takes of tensors."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpu_worker.kernels.int8_linear import GROUP
from gpu_worker.native.arena import Arena
from gpu_worker.native.library import LANES, Function
from gpu_worker.quantised import to_bytes

ByRows = Callable[[int], Function]


class PackedLinear:
    """x [N, in] to x W^T + b [N, out]. Each row's result is the same whatever N is."""

    def __init__(
        self,
        linear: ByRows,
        pack: Function,
        arena: Arena,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self._linear = linear
        self.num_out, self._in = weight.shape
        self._dtype, self._is_bf16 = weight.dtype, weight.dtype == torch.bfloat16
        padded = _padded(self.num_out)
        self._packed = arena.empty(padded * self._in, weight.dtype)
        pack(
            weight.contiguous().data_ptr(),
            self._packed.data_ptr(),
            self.num_out,
            self._in,
            self._is_bf16,
        )
        self._bias = None if bias is None else _with_zeros(bias)
        self.pointers = (self._packed.data_ptr(), None, _pointer(self._bias))

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, width = x.shape
        assert width == self._in
        assert are(self._dtype, x)
        y = x.new_empty(num_rows, self.num_out)
        packed, _, bias = self.pointers
        self._linear(num_rows)(
            x.data_ptr(),
            packed,
            bias,
            y.data_ptr(),
            num_rows,
            width,
            self.num_out,
            self._is_bf16,
            False,
        )
        return y


class Int8Linear:
    """The same in eight bits; see `kernels/int8_linear.py`. Inputs are a multiple of its group."""

    def __init__(
        self,
        linear: ByRows,
        pack: Function,
        arena: Arena,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self._linear = linear
        self.num_out, self._in = weight.shape
        self._dtype, self._is_bf16 = weight.dtype, weight.dtype == torch.bfloat16
        values, scale = to_bytes(weight).tensors()
        self._packed = arena.empty(_padded(self.num_out) * self._in, torch.uint8)
        pack(values.data_ptr(), self._packed.data_ptr(), self.num_out, self._in)
        self._scale = _with_zeros(scale)
        self._bias = None if bias is None else _with_zeros(bias)
        self.pointers = (self._packed.data_ptr(), self._scale.data_ptr(), _pointer(self._bias))

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, width = x.shape
        assert width == self._in
        assert are(self._dtype, x)
        y = x.new_empty(num_rows, self.num_out)
        scratch = int8_scratch(num_rows, width)
        self._linear(num_rows)(
            x.data_ptr(),
            *self.pointers,
            y.data_ptr(),
            scratch.data_ptr(),
            num_rows,
            width,
            self.num_out,
            self._is_bf16,
            False,
        )
        return y


def int8_scratch(num_rows: int, width: int) -> Tensor:
    """Room for rows in eight bits: a byte each, and for each group its scale and its sum."""
    return torch.empty(num_rows * width * (GROUP + 8) // GROUP, dtype=torch.uint8)


def _padded(num_out: int) -> int:
    return -(-num_out // LANES) * LANES


def _with_zeros(values: Tensor) -> Tensor:
    """In float32, filled up to whole vectors."""
    padded = torch.zeros(_padded(len(values)))
    padded[: len(values)] = values
    return padded


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def fits(x: Tensor, width: int) -> bool:
    return x.dtype in (torch.bfloat16, torch.float32) and width % LANES == 0


def are(dtype: torch.dtype, *tensors: Tensor) -> bool:
    """Whether the C code can take them as arrays of that type."""
    for x in tensors:  # noqa: SIM110 - a generator costs twice as much, 450 times a step
        if x.dtype is not dtype or not x.is_contiguous():
            return False
    return True
