"""The native CPU backend: kernels in C behind the interfaces of `gpu_worker.kernels`.

For bfloat16 and float32; whatever the C code does not take (other types, widths that are no
multiple of 16) goes to the references.
"""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.kernels.attention import attention_reference
from gpu_worker.kernels.int8_linear import GROUP
from gpu_worker.kernels.rms_norm import rms_norm_reference
from gpu_worker.kernels.rotary_kv_write import rotary_kv_write_reference
from gpu_worker.kernels.silu_mul import silu_mul_reference
from gpu_worker.model_config import ModelConfig
from gpu_worker.native.arena import Arena
from gpu_worker.native.build import build
from gpu_worker.native.layers import join, join_logits
from gpu_worker.native.library import MAX_HEAD_SIZE, Library
from gpu_worker.native.linear import ByRows, Int8Linear, PackedLinear, are, fits
from gpu_worker.ops import Linear, Ops, pack_int8_reference, pack_reference

SHORT_ROWS = 32  # up to here a kernel takes less than about 0.2 ms, and keeps the GIL


def native_ops(
    cache_dir: Path, threads: int, compiler: str = "", quantization: str = "none"
) -> Ops:
    """The operations, compiled into `cache_dir` if need be, on `threads` threads of their own.

    Raises NativeUnavailableError where there is no compiler. One caller at a time gets the
    threads. torch should run on one thread beside them, or the two pools fight for the cores.
    """
    library = Library(build(cache_dir, compiler))
    library.long("set_threads")(threads)
    library.long("prepare")()
    kernels, is_int8 = NativeKernels(library), quantization == "int8"
    return Ops(
        name="native, int8" if is_int8 else "native",
        attention=kernels.attention,
        embed_norm=kernels.embed_norm,
        rms_norm=kernels.rms_norm,
        last_norm=kernels.last_norm,
        rotary_kv_write=kernels.rotary_kv_write,
        silu_mul=kernels.silu_mul,
        pack=kernels.pack_int8 if is_int8 else kernels.pack,
        packed_bytes=1 if is_int8 else 0,
        join=partial(join, library.long("layers")),
        join_logits=partial(join_logits, library.long("logits")),
    )


def takes_all(config: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether the C code computes all of such a model, and none of it goes to the references."""
    widths = (config.width, config.ffn_width, config.head_size // 2)
    is_taken = all(fits(torch.empty(0, dtype=dtype), width) for width in widths)
    return is_taken and config.head_size <= MAX_HEAD_SIZE


class NativeKernels:
    """Checks what the C code takes on trust, makes room for its results, and calls it."""

    def __init__(self, library: Library) -> None:
        self._arena = Arena()
        self._attention = _by_rows(library, "attention")
        self._rms_norm = _by_rows(library, "rms_norm")
        self._rotary_kv_write = _by_rows(library, "rotary_kv_write")
        self._silu_mul = _by_rows(library, "silu_mul")
        self._linear = _by_rows(library, "linear")
        self._pack = library.long("pack")
        self._linear_int8 = _by_rows(library, "linear_int8")
        self._pack_int8 = library.long("pack_int8")

    def attention(  # noqa: PLR0913, PLR0917
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
    ) -> Tensor:
        num_rows, num_heads, head_size = q.shape
        _, num_groups, block_size, _ = k_cache.shape
        plain = not softcap and k_scale is None and v_scale is None
        if not (plain and fits(q, head_size) and head_size <= MAX_HEAD_SIZE):
            shared = (q, k_cache, v_cache, block_tables, cu_seqlens, lengths, scale, window)
            return attention_reference(*shared, softcap, k_scale, v_scale)
        assert are(q.dtype, q, k_cache, v_cache)
        assert are(torch.int32, block_tables, cu_seqlens, lengths)
        assert len(cu_seqlens) == len(lengths) + 1 == len(block_tables) + 1
        out = torch.empty_like(q)
        failed = self._attention(num_rows)(
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            block_tables.data_ptr(),
            cu_seqlens.data_ptr(),
            lengths.data_ptr(),
            out.data_ptr(),
            len(lengths),
            num_heads,
            num_groups,
            head_size,
            block_size,
            block_tables.shape[1],
            scale,
            window,
            q.dtype == torch.bfloat16,
        )
        assert not failed, "out of memory"
        return out

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        num_rows, width = x.shape
        if not fits(x, width):
            return rms_norm_reference(x, weight, eps, residual)
        assert are(x.dtype, x, weight)
        out, total, residual_pointer = torch.empty_like(x), x, None
        if residual is not None:
            assert are(x.dtype, residual)
            total, residual_pointer = torch.empty_like(x), residual.data_ptr()
        self._rms_norm(num_rows)(
            x.data_ptr(),
            weight.data_ptr(),
            residual_pointer,
            out.data_ptr(),
            total.data_ptr(),
            num_rows,
            width,
            eps,
            x.dtype == torch.bfloat16,
        )
        return out, total

    def embed_norm(
        self, tokens: Tensor, embedding: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return self.rms_norm(embedding[tokens], weight, eps, None)

    def last_norm(
        self, x: Tensor, residual: Tensor, last: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        return self.rms_norm(x[last], weight, eps, residual[last])[0]

    def rotary_kv_write(  # noqa: PLR0913, PLR0917  (one pass over all of it is its point)
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
    ) -> Tensor:
        num_rows = len(qkv)
        _, num_groups, block_size, head_size = k_cache.shape
        if not fits(qkv, head_size // 2):
            return rotary_kv_write_reference(
                qkv, cos_sin, positions, q_norm, k_norm, eps, k_cache, v_cache, slot_mapping
            )
        assert are(qkv.dtype, qkv, k_cache, v_cache)
        assert are(torch.float32, cos_sin)
        assert are(torch.int32, positions)
        assert are(torch.int64, slot_mapping)
        num_heads = qkv.shape[1] // head_size - 2 * num_groups
        q = qkv.new_empty(num_rows, num_heads, head_size)
        self._rotary_kv_write(num_rows)(
            qkv.data_ptr(),
            cos_sin.data_ptr(),
            positions.data_ptr(),
            None if q_norm is None else q_norm.data_ptr(),
            None if k_norm is None else k_norm.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            slot_mapping.data_ptr(),
            q.data_ptr(),
            num_rows,
            num_heads,
            num_groups,
            head_size,
            block_size,
            eps,
            qkv.dtype == torch.bfloat16,
        )
        return q

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        if not fits(gate_up, width):
            return silu_mul_reference(gate_up)
        assert are(gate_up.dtype, gate_up)
        out = gate_up.new_empty(num_rows, width)
        is_bf16 = gate_up.dtype == torch.bfloat16
        self._silu_mul(num_rows)(gate_up.data_ptr(), out.data_ptr(), num_rows, width, is_bf16)
        return out

    def pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """A linear layer with its weight repacked; keeps neither `weight` nor `bias`."""
        if not fits(weight, weight.shape[1]):
            return pack_reference(weight, bias)
        return PackedLinear(self._linear, self._pack, self._arena, weight, bias)

    def pack_int8(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """The same in eight bits, or in its own type where its inputs make no whole groups."""
        if weight.shape[1] % GROUP:
            return self.pack(weight, bias)
        if not fits(weight, weight.shape[1]):
            return pack_int8_reference(weight, bias)
        return Int8Linear(self._linear_int8, self._pack_int8, self._arena, weight, bias)


def _by_rows(library: Library, name: str) -> ByRows:
    """For a number of rows: the function that keeps the GIL, or the one that does not."""
    short, long = library.short(name), library.long(name)
    return lambda num_rows: short if num_rows <= SHORT_ROWS else long
