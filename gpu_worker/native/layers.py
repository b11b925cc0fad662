"""All layers of a model in one call of the C code, and its logits in another; see `layers.c`."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Layer, Llama
from gpu_worker.native.library import FLOAT, INT64, MAX_HEAD_SIZE, POINTER, Function
from gpu_worker.native.linear import Int8Linear, PackedLinear, are, fits, int8_scratch
from gpu_worker.ops import Linear

Fields = Sequence[tuple[str, type[Any]]]

KERNELS = ("rms_norm", "linear", "rotary_kv_write", "attention", "silu_mul")  # as in layers.c


def _fields(kind: type[Any], names: str) -> Fields:
    return [(name, kind) for name in names.split()]


class CPacked(ctypes.Structure):
    _fields_ = _fields(POINTER, "weight scale bias")


class CLayer(ctypes.Structure):
    _fields_ = [
        *_fields(POINTER, "input_norm q_norm k_norm ffn_norm"),
        *_fields(CPacked, "qkv out gate_up down"),
        ("window", INT64),
    ]


class CStep(ctypes.Structure):
    _fields_ = [
        *_fields(POINTER, "layers cos_sin embedding x hidden scratch"),
        *_fields(POINTER, "tokens positions tables cu_seqlens lengths"),
        *_fields(POINTER, "slots k_cache v_cache bytes nanoseconds"),
        *_fields(INT64, "L N E F V S T H G D B cache_bytes is_bf16"),
        *_fields(FLOAT, "eps scale"),
    ]


class CHead(ctypes.Structure):
    _fields_ = [
        *_fields(POINTER, "x residual last norm"),
        ("weight", CPacked),
        *_fields(POINTER, "scratch bytes logits"),
        *_fields(INT64, "N E V R is_bf16"),
        *_fields(FLOAT, "eps"),
    ]


class JoinedLayers:
    """Computes what `Llama.one_by_one` does with the same kernels."""

    def __init__(self, function: Function, model: Llama) -> None:
        self._function = function
        self._model = model  # keeps what the pointers point to
        self._layers = (CLayer * len(model.layers))(*map(_layer, model.layers))
        linears = [linear for layer in model.layers for linear in _linears(layer)]
        self._has_bytes = any(isinstance(linear, Int8Linear) for linear in linears)
        self._nanoseconds: ctypes.Array[ctypes.c_int64] | None = None

    def measure(self) -> None:
        """From now on take the time of each kernel."""
        self._nanoseconds = (INT64 * len(KERNELS))()

    def milliseconds(self) -> dict[str, float]:
        """By kernel, since the last call or since `measure`."""
        assert self._nanoseconds is not None
        taken = dict(zip(KERNELS, (each / 1e6 for each in self._nanoseconds), strict=True))
        self.measure()
        return taken

    def __call__(self, inputs: Inputs, cache: KVCache) -> tuple[Tensor, Tensor]:
        config, num_tokens = self._model.config, len(inputs.tokens)
        embedding = self._model.embedding
        x, hidden = embedding.new_empty(2, num_tokens, config.width)
        num_layers, _, num_groups, block_size, head_size = cache.k.shape
        assert num_layers == len(self._layers)
        assert are(x.dtype, x, cache.k, cache.v)
        assert are(torch.int32, inputs.positions, inputs.block_tables, inputs.lengths)
        assert are(torch.int32, inputs.tokens, inputs.cu_seqlens)
        assert are(torch.int64, inputs.slot_mapping)
        assert len(inputs.positions) == len(inputs.slot_mapping) == num_tokens
        assert len(inputs.cu_seqlens) == len(inputs.lengths) + 1 == len(inputs.block_tables) + 1
        heads = (2 * config.num_heads + 2 * num_groups) * head_size
        scratch = x.new_empty(num_tokens, config.width + heads + 3 * config.ffn_width)
        widest = max(config.width, config.ffn_width, config.num_heads * head_size)
        octets = int8_scratch(num_tokens if self._has_bytes else 0, widest)
        step = CStep(
            layers=ctypes.addressof(self._layers),
            cos_sin=self._model.cos_sin.data_ptr(),
            embedding=embedding.data_ptr(),
            x=x.data_ptr(),
            hidden=hidden.data_ptr(),
            scratch=scratch.data_ptr(),
            tokens=inputs.tokens.data_ptr(),
            positions=inputs.positions.data_ptr(),
            tables=inputs.block_tables.data_ptr(),
            cu_seqlens=inputs.cu_seqlens.data_ptr(),
            lengths=inputs.lengths.data_ptr(),
            slots=inputs.slot_mapping.data_ptr(),
            k_cache=cache.k.data_ptr(),
            v_cache=cache.v.data_ptr(),
            bytes=octets.data_ptr(),
            nanoseconds=self._nanoseconds and ctypes.addressof(self._nanoseconds),
            L=num_layers,
            N=num_tokens,
            E=config.width,
            F=config.ffn_width,
            V=len(embedding),
            S=len(inputs.lengths),
            T=inputs.block_tables.shape[1],
            H=config.num_heads,
            G=num_groups,
            D=head_size,
            B=block_size,
            cache_bytes=cache.k[0].nbytes,
            is_bf16=x.dtype == torch.bfloat16,
            eps=config.norm_eps,
            scale=head_size**-0.5,
        )
        failed = self._function(ctypes.addressof(step))
        assert not failed, "out of memory, or a token beyond the vocabulary"
        return hidden, x


class JoinedLogits:
    """Computes what `Llama.plain_logits` does with the same kernels."""

    def __init__(self, function: Function, model: Llama, head: PackedLinear | Int8Linear) -> None:
        self._function = function
        self._model = model
        self._head, self._has_bytes = _packed(head), isinstance(head, Int8Linear)
        self._num_out = head.num_out

    def __call__(self, x: Tensor, residual: Tensor, last: Tensor) -> Tensor:
        (num_tokens, width), num_rows = x.shape, len(last)
        assert residual.shape == x.shape
        assert are(self._model.embedding.dtype, x, residual)
        assert are(torch.int64, last)
        scratch = x.new_empty(3, num_rows, width)
        octets = int8_scratch(num_rows if self._has_bytes else 0, width)
        logits = torch.empty(num_rows, self._num_out)
        head = CHead(
            x=x.data_ptr(),
            residual=residual.data_ptr(),
            last=last.data_ptr(),
            norm=self._model.norm.data_ptr(),
            weight=self._head,
            scratch=scratch.data_ptr(),
            bytes=octets.data_ptr(),
            logits=logits.data_ptr(),
            N=num_tokens,
            E=width,
            V=self._num_out,
            R=num_rows,
            is_bf16=x.dtype == torch.bfloat16,
            eps=self._model.config.norm_eps,
        )
        failed = self._function(ctypes.addressof(head))
        assert not failed, "a row that is not there"
        return logits


def join(function: Function, model: Llama) -> JoinedLayers | None:
    """The layers of `model` as one function, where the C code can."""
    return JoinedLayers(function, model) if _fits(model) else None


def join_logits(function: Function, model: Llama) -> JoinedLogits | None:
    """What makes logits of its last layer as one function, where the C code can."""
    head, dtype = model.head, model.embedding.dtype
    if not isinstance(head, PackedLinear | Int8Linear):
        return None
    is_taken = fits(model.embedding, model.config.width) and are(dtype, model.norm)
    return JoinedLogits(function, model, head) if is_taken else None


def _fits(model: Llama) -> bool:
    """Whether the C code takes all of the model's widths and types."""
    config, dtype = model.config, model.embedding.dtype
    norms = [norm for layer in model.layers for norm in _norms(layer) if norm is not None]
    return (
        all(
            isinstance(linear, PackedLinear | Int8Linear)
            for layer in model.layers
            for linear in _linears(layer)
        )
        and fits(model.embedding, config.width)
        and fits(model.embedding, config.ffn_width)
        and fits(model.embedding, config.head_size // 2)
        and config.head_size <= MAX_HEAD_SIZE
        and are(dtype, model.embedding, *norms)
        and are(torch.float32, model.cos_sin)
    )


def _norms(layer: Layer) -> tuple[Tensor | None, ...]:
    return layer.input_norm, layer.q_norm, layer.k_norm, layer.ffn_norm


def _linears(layer: Layer) -> tuple[Linear, ...]:
    return layer.qkv, layer.out, layer.gate_up, layer.down


def _layer(layer: Layer) -> CLayer:
    pointers = [None if norm is None else norm.data_ptr() for norm in _norms(layer)]
    return CLayer(*pointers, *map(_packed, _linears(layer)), layer.window)


def _packed(linear: object) -> CPacked:
    assert isinstance(linear, PackedLinear | Int8Linear)
    return CPacked(*linear.pointers)
