"""The GPU backend's operations: Triton kernels, and linear layers as torch's library has them.

Importing this module imports triton, which a machine without a GPU need not have.
"""

from torch import Tensor

from gpu_worker.kernels.attention_triton import attention, fixed_attention
from gpu_worker.kernels.block_copy_triton import block_copy
from gpu_worker.kernels.fixed_matmul_triton import fixed_matmul
from gpu_worker.kernels.gather_norm_triton import embed_norm, last_norm
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul_triton import silu_mul
from gpu_worker.ops import Linear, Ops, pack_reference
from gpu_worker.quantised import to_bytes
from gpu_worker.quantised_linear import pack_quantised


def triton_ops(deterministic: bool = False, quantization: str = "none") -> Ops:
    """With `deterministic` a row is the same bits in any batch, however its prompt was cut.

    Quantised weights are widened when they are loaded then: their kernels and the library's, for
    few rows and for many, add up in orders of their own.
    """
    is_int8 = quantization == "int8"
    assert not (deterministic and is_int8)
    extra = ", deterministic" if deterministic else ", int8" if is_int8 else ""
    return Ops(
        name=f"triton{extra}",
        attention=fixed_attention if deterministic else attention,
        embed_norm=embed_norm,
        rms_norm=rms_norm,
        last_norm=last_norm,
        rotary_kv_write=rotary_kv_write,
        silu_mul=silu_mul,
        pack=pack_fixed if deterministic else pack_int8 if is_int8 else pack_reference,
        packed_bytes=1 if is_int8 else 0,
        pack_quantised=None if deterministic else pack_quantised,
        block_copy=block_copy,
    )


def pack_int8(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer with its weight in eight bits."""
    return pack_quantised(to_bytes(weight), bias)


def pack_fixed(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer in one order of sums."""
    return lambda x: fixed_matmul(x, weight, bias)
