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
from gpu_worker.ops import Layers, Linear, Logits, Ops
from gpu_worker.parallel import ALONE, Group, embed


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
    """A model, or what one rank of `group` computes of it: H, G and F are then the rank's."""

    config: ModelConfig
    ops: Ops
    embedding: Tensor  # [V, E], or the rank's part of V
    layers: tuple[Layer, ...]
    norm: Tensor  # [E]
    head: Linear  # E to V
    cos_sin: Tensor  # [M, D] float32
    group: Group = ALONE

    @torch.inference_mode()
    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        """Write K and V of the step into the cache; return the logits [R, V] in float32."""
        return self.logits(*self.hidden(inputs, cache), inputs.last)

    @cached_property
    def hidden(self) -> Layers:
        """Write K and V of the step into the cache; return what the last layer adds, and to what.

        Two of [N, E]. Nothing in it depends on R.
        """
        return self.ops.join(self) or self.one_by_one

    @cached_property
    def logits(self) -> Logits:
        """[R, V] in float32, of what `hidden` returned and the tokens `last` in it."""
        return self.ops.join_logits(self) or self.plain_logits

    def plain_logits(self, x: Tensor, residual: Tensor, last: Tensor) -> Tensor:
        """Norm, head and conversion, operation by operation."""
        return self.head(
            self.ops.last_norm(x, residual, last, self.norm, self.config.norm_eps)
        ).float()

    def one_by_one(self, inputs: Inputs, cache: KVCache) -> tuple[Tensor, Tensor]:
        """All layers, operation by operation."""
        ops, eps = self.ops, self.config.norm_eps
        x, residual = self._embed(inputs.tokens)  # [N, E] each
        for layer, k_cache, v_cache in zip(self.layers, cache.k, cache.v, strict=True):
            if layer is not self.layers[0]:
                x, residual = ops.rms_norm(x, layer.input_norm, eps, residual)
            x = self._attend(layer, x, inputs, k_cache, v_cache)
            x, residual = ops.rms_norm(x, layer.ffn_norm, eps, residual)
            x = layer.down(ops.silu_mul(layer.gate_up(x)))  # [N, E]
        return x, residual

    def _embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Two of [N, E]: the embeddings normalised for the first layer, and as they are."""
        first, eps = self.layers[0].input_norm, self.config.norm_eps
        if self.group.shard.size == 1:
            return self.ops.embed_norm(tokens, self.embedding, first, eps)
        return self.ops.rms_norm(embed(tokens, self.embedding, self.group), first, eps, None)

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
