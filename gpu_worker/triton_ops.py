"""The GPU backend's operations: Triton kernels, and linear layers as torch's library has them.

Importing this module imports triton, which a machine without a GPU need not have.
"""

from gpu_worker.kernels.attention_triton import attention
from gpu_worker.kernels.block_copy_triton import block_copy
from gpu_worker.kernels.gather_norm_triton import embed_norm, last_norm
from gpu_worker.kernels.rms_norm_triton import rms_norm
from gpu_worker.kernels.rotary_kv_write_triton import rotary_kv_write
from gpu_worker.kernels.silu_mul_triton import silu_mul
from gpu_worker.ops import Ops, pack_reference
from gpu_worker.quantised_linear import pack_quantised


def triton_ops() -> Ops:
    return Ops(
        name="triton",
        attention=attention,
        embed_norm=embed_norm,
        rms_norm=rms_norm,
        last_norm=last_norm,
        rotary_kv_write=rotary_kv_write,
        silu_mul=silu_mul,
        pack=pack_reference,
        pack_quantised=pack_quantised,
        block_copy=block_copy,
    )
