"""Which layers of a checkpoint make up the linear layers of a model, and what of each a rank takes.

Layers that see the same input are joined: q, k and v, and gate and up.
"""

from typing import NamedTuple

from gpu_worker.model_config import ModelConfig
from gpu_worker.shard import Shard, Span, whole


class Part(NamedTuple):
    name: str  # in the checkpoint, without `.weight`
    outputs: Span
    inputs: Span

    @property
    def num_weights(self) -> int:
        """Of the rank."""
        return self.outputs.length * self.inputs.length


class LayerParts(NamedTuple):
    qkv: list[Part]
    out: list[Part]
    gate_up: list[Part]
    down: list[Part]


def layer_parts(config: ModelConfig, shard: Shard, prefix: str) -> LayerParts:
    """`config` is the whole model's; `prefix` as `model.layers.0.`."""
    width, middle = whole(config.width), shard.part(config.ffn_width)
    heads = shard.part(config.num_heads, config.head_size)
    groups = shard.groups(config.num_groups, config.head_size)
    attention, ffn = prefix + "self_attn.", prefix + "mlp."
    return LayerParts(
        qkv=[
            Part(attention + "q_proj", heads, width),
            Part(attention + "k_proj", groups, width),
            Part(attention + "v_proj", groups, width),
        ],
        out=[Part(attention + "o_proj", width, heads)],
        gate_up=[Part(ffn + "gate_proj", middle, width), Part(ffn + "up_proj", middle, width)],
        down=[Part(ffn + "down_proj", width, middle)],
    )


def all_parts(config: ModelConfig, shard: Shard) -> list[Part]:
    """The parts of all layers."""
    return [
        part
        for index in range(config.num_layers)
        for parts in layer_parts(config, shard, f"model.layers.{index}.")
        for part in parts
    ]
