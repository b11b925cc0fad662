"""Model files to a model, layer by layer: no second copy of all weights is ever in memory.

Of a model that several ranks compute, each reads its own part of each tensor.
"""

from pathlib import Path

import torch

from gpu_worker.engine import ModelError, Progress, no_progress
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.llama import Llama
from gpu_worker.model_config import rotary_table
from gpu_worker.model_parts import all_parts
from gpu_worker.ops import Ops
from gpu_worker.parallel import ALONE, Group, gathered
from gpu_worker.quantised_formats import format_of, naming
from gpu_worker.safetensors_weights import SafetensorsWeights
from gpu_worker.shard import Shard
from gpu_worker.weight_file import WeightFile
from gpu_worker.weight_reader import WeightReader


def open_weights(path: Path) -> WeightFile:
    """Open a GGUF file, or a directory with config.json and safetensors."""
    try:
        if path.is_dir():
            return SafetensorsWeights(path)
        return GgufWeights(path)
    except (OSError, ValueError, KeyError) as error:
        # What the libraries raise for a file that is cut short, or a config without a field.
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: cannot be read as a model: {reason}") from error


def load_model(
    weights: WeightFile,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
    progress: Progress = no_progress,
    group: Group = ALONE,
) -> Llama:
    """The model of `weights`, or this rank's part, for up to `num_positions` tokens of a sequence.

    Raises ModelError, also where it cannot be split over the ranks of `group`.
    """
    config = group.shard.config(weights.config)
    reader = WeightReader(weights, ops, dtype, device, group, progress)
    embedding = reader.vocabulary("model.embed_tokens")
    layers = tuple(
        reader.layer(f"model.layers.{index}.", window)
        for index, window in enumerate(config.windows)
    )
    norm = reader.tensor("model.norm.weight", config.width)
    head = embedding if config.tied else reader.vocabulary("lm_head")
    logits = gathered(ops.pack(head, None), group, config.vocab_size)
    reader.refuse_leftovers()
    cos_sin = rotary_table(config.frequencies, num_positions).to(device)
    return Llama(config, ops, embedding, layers, norm, logits, cos_sin, group)


def weight_bytes(
    weights: WeightFile, ops: Ops, dtype: torch.dtype, shard: Shard = ALONE.shard
) -> int:
    """Memory that a rank's weights take at least: without norms, biases and what kernels add."""
    config, names = weights.config, weights.names()
    outer = shard.padded_tokens(config.vocab_size) * config.width * (1 if config.tied else 2)
    total = outer * dtype.itemsize
    for part in all_parts(config, shard):
        format_ = format_of(weights.formats, part.name, names)
        if ops.pack_quantised is None or format_ is None:
            total += part.num_weights * (ops.packed_bytes or dtype.itemsize)
            continue
        tensors = {suffix: f"{part.name}.{suffix}" for suffix in format_.tensors()}
        shapes = {suffix: weights.shape(n) for suffix, n in tensors.items() if n in names}
        num_out, num_in = part.outputs.size, part.inputs.size
        with naming(part.name):
            of_all = format_.num_bytes(shapes, num_out, num_in)
        total += of_all * part.num_weights // (num_out * num_in)
    return total
