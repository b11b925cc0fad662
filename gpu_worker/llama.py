"""The Llama family: Llama, Mistral, Qwen2, Qwen3 and their kin, as one forward pass.

Axes: S sequences, N tokens of the step, R rows that sample, H query heads, G key/value heads,
D head size, P blocks in the pool, B tokens in a block, T width of a block table, E width,
F feed-forward width, V vocabulary, L layers, M positions.

The tokens of all sequences lie one after the other in N: linear layers see them all at once, and
attention alone knows which belong together.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gpu_worker.kv_cache import KVCache
from gpu_worker.model_config import ModelConfig
from gpu_worker.ops import Layers, Linear, Ops


@dataclass(frozen=True)
class Inputs:
    """The tensors of one step, all on the model's device."""

    tokens: Tensor  # [N] int32
    positions: Tensor  # [N] int32
    slot_mapping: Tensor  # [N] int64
    block_tables: Tensor  # [S, T] int32
    cu_seqlens: Tensor  # [S + 1] int32
    lengths: Tensor  # [S] int32
    last: Tensor  # [R] int64: the tokens, in N, after which one is sampled


@dataclass(frozen=True)
class Layer:
    input_norm: Tensor  # [E]
    qkv: Linear  # E to (H + 2G) * D
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    out: Linear  # H * D to E
    ffn_norm: Tensor  # [E]
    gate_up: Linear  # E to 2F
    down: Linear  # F to E
    window: int  # tokens that it sees; 0: all


@dataclass(frozen=True)
class Llama:
    config: ModelConfig
    ops: Ops
    embedding: Tensor  # [V, E]
    layers: tuple[Layer, ...]
    norm: Tensor  # [E]
    head: Linear  # E to V
    cos_sin: Tensor  # [M, D] float32

    @torch.inference_mode()
    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        """Write K and V of the step into the cache; return the logits [R, V] in float32."""
        x, residual = self._layers(self.embedding[inputs.tokens], inputs, cache)  # [N, E] each
        last, eps = inputs.last, self.config.norm_eps
        x, _ = self.ops.rms_norm(x[last], self.norm, eps, residual[last])  # [R, E]
        return self.head(x).float()

    @cached_property
    def _layers(self) -> Layers:
        return self.ops.join(self) or self.one_by_one

    def one_by_one(self, x: Tensor, inputs: Inputs, cache: KVCache) -> tuple[Tensor, Tensor]:
        """All layers, operation by operation."""
        eps, rms_norm = self.config.norm_eps, self.ops.rms_norm
        residual: Tensor | None = None
        for layer, k_cache, v_cache in zip(self.layers, cache.k, cache.v, strict=True):
            x, residual = rms_norm(x, layer.input_norm, eps, residual)
            x = self._attend(layer, x, inputs, k_cache, v_cache)
            x, residual = rms_norm(x, layer.ffn_norm, eps, residual)
            x = layer.down(self.ops.silu_mul(layer.gate_up(x)))  # [N, E]
        assert residual is not None
        return x, residual

    def _attend(
        self, layer: Layer, x: Tensor, inputs: Inputs, k_cache: Tensor, v_cache: Tensor
    ) -> Tensor:
        q = self.ops.rotary_kv_write(  # [N, H, D]
            layer.qkv(x),
            self.cos_sin,
            inputs.positions,
            layer.q_norm,
            layer.k_norm,
            self.config.norm_eps,
            k_cache,
            v_cache,
            inputs.slot_mapping,
        )
        attended = self.ops.attention(
            q,
            k_cache,
            v_cache,
            inputs.block_tables,
            inputs.cu_seqlens,
            inputs.lengths,
            self.config.head_size**-0.5,
            layer.window,
        )
        return layer.out(attended.flatten(1))
