"""The operations that a model is made of; which kernels they are is decided once, at the start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.block_copy import block_copy_reference
from gpu_worker.kernels.gather_norm import embed_norm_reference, last_norm_reference
from gpu_worker.kernels.int8_linear import GROUP, int8_linear_reference
from gpu_worker.kernels.rms_norm import rms_norm_reference
from gpu_worker.kernels.rotary_kv_write import rotary_kv_write_reference
from gpu_worker.kernels.silu_mul import silu_mul_reference
from gpu_worker.quantised import to_bytes

if TYPE_CHECKING:
    from gpu_worker.kv_cache import KVCache
    from gpu_worker.llama import Inputs, Llama
    from gpu_worker.quantised import QuantisedWeight

Linear = Callable[[Tensor], Tensor]  # [N, in] to [N, out]
# A step to what the last layer adds, and the residual that it is to be added to: [N, E] each.
Layers = Callable[["Inputs", "KVCache"], tuple[Tensor, Tensor]]
# What a step returned, both [N, E], and rows [R] of it, to [R, V] in float32.
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
BlockCopy = Callable[[Tensor, Tensor, Tensor], None]  # (source, target, pairs)


class Attention(Protocol):
    def __call__(  # noqa: PLR0913, PLR0917  (what a mixed step is, and what a layer may ask for)
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        cu_seqlens: Tensor,
        lengths: Tensor,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> Tensor: ...


class RotaryKVWrite(Protocol):
    def __call__(  # noqa: PLR0913, PLR0917  (one pass over all of it is its point)
        self,
        qkv: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Ops:
    """One backend's operations. Shapes and contracts stand in the files of `kernels`."""

    name: str
    attention: Attention
    embed_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rms_norm: Callable[[Tensor, Tensor, float, Tensor | None], tuple[Tensor, Tensor]]
    last_norm: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
    rotary_kv_write: RotaryKVWrite
    silu_mul: Callable[[Tensor], Tensor]
    pack: Callable[[Tensor, Tensor | None], Linear]  # weight [out, in], bias [out]; may keep both
    packed_bytes: int = 0  # that `pack` keeps of a weight; 0: those of its type
    # The same for weights of fewer bits; None: they are widened when they are loaded.
    pack_quantised: "Callable[[QuantisedWeight, Tensor | None], Linear] | None" = None
    block_copy: BlockCopy = block_copy_reference
    join: "Callable[[Llama], Layers | None]" = lambda _: None  # all layers in one call, if it can
    join_logits: "Callable[[Llama], Logits | None]" = lambda _: None  # likewise


def torch_ops(quantization: str = "none") -> Ops:
    """The references: right on every device, fast on none."""
    is_int8 = quantization == "int8"
    return Ops(
        name="torch, int8" if is_int8 else "torch",
        attention=attention_reference,
        embed_norm=embed_norm_reference,
        rms_norm=rms_norm_reference,
        last_norm=last_norm_reference,
        rotary_kv_write=rotary_kv_write_reference,
        silu_mul=silu_mul_reference,
        pack=pack_int8_reference if is_int8 else pack_reference,
        packed_bytes=1 if is_int8 else 0,
    )


def pack_int8_reference(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer in eight bits, or as it is where its inputs make no whole groups."""
    if weight.shape[1] % GROUP:
        return pack_reference(weight, bias)
    values, scale = to_bytes(weight).tensors()
    return lambda x: int8_linear_reference(x, values, scale, bias)


def pack_reference(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer as torch computes it."""
    return lambda x: torch.nn.functional.linear(x, weight, bias)
