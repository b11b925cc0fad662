"""What comes between a loaded model and an engine: a measured step, which warms up too.

On a CPU here; `device_preparation.py` does it for a GPU.
"""

import math
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gpu_worker import memory
from gpu_worker.engine import Capacity
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Llama
from gpu_worker.processor import HostProcessor, Processor
from gpu_worker.sampler import SamplingColumns, sample

CPU = torch.device("cpu")
TRIAL_TOKENS, TRIALS = 128, 3  # as many on every rank: they meet in each step
BLOCK_SIZE, LEAST_TOKENS, MOST_TOKENS = 16, 96, 512


class Preparation(Protocol):
    def measure(self, capacity: Capacity) -> int:
        """Bytes of memory that computing takes beside weights and cache, at most.

        Of `capacity` the number of blocks is not known yet.
        """
        ...

    def processor(self, cache: KVCache, capacity: Capacity) -> Processor:
        """What computes, when all that can be done before the first plan is done."""
        ...


@dataclass(frozen=True)
class HostPreparation:
    model: Llama

    def step_tokens(self, seconds: float) -> int:
        """Tokens of a prompt that a step computes within so much time, by the best of some trials.

        At least `LEAST_TOKENS`, at most `MOST_TOKENS`: it may take longer, or not so long.
        """
        num_blocks, dtype = -(-TRIAL_TOKENS // BLOCK_SIZE), self.model.embedding.dtype
        cache = KVCache.allocate(self.model.config, num_blocks, BLOCK_SIZE, dtype, CPU)
        inputs = _one_sequence(TRIAL_TOKENS, num_blocks, 1, len(self.model.cos_sin))
        best = math.inf
        for _ in range(TRIALS):
            began = time.perf_counter()
            self.model.forward(inputs, cache)
            best = min(best, time.perf_counter() - began)
        count = int(TRIAL_TOKENS * seconds / best) // BLOCK_SIZE * BLOCK_SIZE
        return max(LEAST_TOKENS, min(MOST_TOKENS, count))

    def measure(self, capacity: Capacity) -> int:
        """Compute the largest step that can occur; the memory that it took and gave back.

        It is one sequence, of which as many tokens are sampled from as there may be rows, in the
        costliest way: what takes memory is the same as with many sequences.
        """
        num_tokens, block_size = capacity.max_step_tokens, capacity.block_size
        num_blocks, dtype = -(-num_tokens // block_size), self.model.embedding.dtype
        cache = KVCache.allocate(self.model.config, num_blocks, block_size, dtype, CPU)
        before = memory.resident_bytes(CPU)
        inputs = _one_sequence(num_tokens, num_blocks, capacity.max_rows, len(self.model.cos_sin))
        sample(self.model.forward(inputs, cache), _costly_sampling(len(inputs.last)))
        return max(0, memory.peak_bytes(CPU) - before)

    def processor(self, cache: KVCache, _capacity: Capacity) -> HostProcessor:
        return HostProcessor(self.model, cache)


def _one_sequence(num_tokens: int, num_blocks: int, num_rows: int, num_positions: int) -> Inputs:
    tokens = torch.arange(num_tokens)
    positions = (tokens % num_positions).int()  # a step can be longer than a request
    return Inputs(
        tokens=torch.zeros_like(positions),
        positions=positions,
        slot_mapping=tokens,
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        cu_seqlens=torch.tensor([0, num_tokens], dtype=torch.int32),
        lengths=torch.tensor([num_tokens], dtype=torch.int32),
        last=tokens[:num_rows],
    )


def _costly_sampling(num_rows: int) -> SamplingColumns:
    ones = np.ones(num_rows, np.float32)
    zeros = np.zeros(num_rows, np.int64)
    return SamplingColumns(
        seed=zeros.astype(np.uint64),
        position=zeros,
        temperature=ones,
        top_k=zeros,
        top_p=0.9 * ones,
        min_p=0 * ones,
    )
