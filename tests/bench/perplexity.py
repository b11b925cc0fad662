"""How much less the embedded model expects of a text once its weights are in eight bits.

    python -m tests.bench.perplexity [--tokens 10000] [--most 1.01]

The text is Python's own help, the same on every machine; each window of 1,024 tokens starts anew.
Prints the perplexity in bfloat16 and in eight bits, and their ratio. Exit 1 if it is beyond --most.
"""

import argparse
import math
import pydoc_data.topics
import sys
import tempfile
from pathlib import Path

import torch

from common.model_files import EMBEDDED, locate
from common.tokenizer import Tokenizer
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Llama
from gpu_worker.native.ops import native_ops
from gpu_worker.weights import load_model, open_weights

WINDOW, BLOCK_SIZE = 1024, 16
CPU = torch.device("cpu")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--most", type=float, default=1.01, help="largest ratio that is no failure")
    options = parser.parse_args()
    tokens = text_tokens(options.tokens)
    with tempfile.TemporaryDirectory() as folder:
        plain = perplexity(load("none", Path(folder)), tokens)
        rounded = perplexity(load("int8", Path(folder)), tokens)
    ratio = rounded / plain
    print(f"{len(tokens):,} tokens of Python's help: bfloat16 {plain:.4f}, int8 {rounded:.4f}")
    print(f"ratio {ratio:.4f}")
    return int(ratio > options.most)


def text_tokens(count: int) -> list[int]:
    prose = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    tokens = Tokenizer.load(locate(EMBEDDED, Path())).encode(prose[: 8 * count])
    assert len(tokens) >= count
    return tokens[:count]


def load(quantization: str, folder: Path) -> Llama:
    ops = native_ops(folder, threads=2, quantization=quantization)
    weights = open_weights(locate(EMBEDDED, Path()).path)
    return load_model(weights, ops, torch.bfloat16, CPU, WINDOW)


@torch.inference_mode()
def perplexity(model: Llama, tokens: list[int]) -> float:
    surprise, count = 0.0, 0
    for start in range(0, len(tokens), WINDOW):
        window = torch.tensor(tokens[start : start + WINDOW])
        logits = model.forward(*inputs_of(model, window))[:-1]
        chosen = logits.log_softmax(1).gather(1, window[1:, None])
        surprise -= float(chosen.double().sum())
        count += len(chosen)
    return math.exp(surprise / count)


def inputs_of(model: Llama, tokens: torch.Tensor) -> tuple[Inputs, KVCache]:
    """One step of one sequence, of which every token is asked for."""
    length = len(tokens)
    places, num_blocks = torch.arange(length), -(-length // BLOCK_SIZE)
    inputs = Inputs(
        tokens=tokens.int(),
        positions=places.int(),
        slot_mapping=places,
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        lengths=torch.tensor([length], dtype=torch.int32),
        last=places,
    )
    dtype = model.embedding.dtype
    return inputs, KVCache.allocate(model.config, num_blocks, BLOCK_SIZE, dtype, CPU)


if __name__ == "__main__":
    sys.exit(main())
