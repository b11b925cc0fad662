"""Times of sampling at 128,256 tokens of vocabulary, and of what comes before and behind it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.edit_logits_triton import edit_logits
from gpu_worker.kernels.last_tokens_triton import keep_tokens, pick_tokens
from gpu_worker.kernels.logprobs_triton import logprobs
from gpu_worker.kernels.sample_triton import sample
from tests.gpu.machine import Machine
from tests.gpu.timed import Run, Timed
from tests.gpu_worker.kernel_costs import Cost, V, sampling_costs

PENALISED = 1000  # tokens of a row
# Scale of the logits, top_k and top_p: of flat ones a nucleus has more than the short list holds.
FILTERED = (("sample, top-k, top-p", 1.0, 50, 0.9), ("sample, top-p, flat", 0.1, 0, 0.95))
DRY_FILTERED = (("sample, top-k, top-p", 1.0, 1, 1.0),)  # the interpreter takes seconds for others


def sampling_times(machine: Machine) -> Iterator[Timed]:
    for rows in machine.pick((1, 64), (1,)):
        costs = {cost.name: cost for cost in sampling_costs(rows)}
        logits = torch.randn(rows, machine.pick(V, 300), device=machine.device) * 2.5
        for name, run in _runs(logits).items():
            yield Timed(costs[name], run)
        # Filters write weights over the logits: each run has a copy of them first.
        for name, scale, top_k, top_p in machine.pick(FILTERED, DRY_FILTERED):
            yield Timed(_with_copy(costs[name]), _sample(logits * scale, top_k, top_p))


def _with_copy(cost: Cost) -> Cost:
    num_bytes = cost.num_bytes + 2 * 4 * cost.num_rows * V
    name = f"{cost.name}, and a copy"
    return replace(cost, name=name, num_bytes=num_bytes, launches=cost.launches + 1)


def _runs(logits: Tensor) -> dict[str, Run]:
    ids = torch.arange(len(logits), device=logits.device).int()
    tokens, newest = ids.long(), ids.clone()
    return {
        "sample, greedy": partial(sample, logits, *_columns(logits, 0.0, 0, 1.0), draws=False),
        "sample, no filter": partial(sample, logits, *_columns(logits, 1.0, 0, 1.0)),
        "edit_logits": _edits(logits.clone()),
        "logprobs, 20 likeliest": partial(logprobs, logits, tokens, 20),
        "pick_tokens": partial(pick_tokens, ids, ids, newest),
        "keep_tokens": partial(keep_tokens, tokens, ids, newest),
    }


def _sample(logits: Tensor, top_k: int, top_p: float) -> Run:
    columns, taken = _columns(logits, 1.0, top_k, top_p), torch.empty_like(logits)

    def run() -> None:
        taken.copy_(logits)
        sample(taken, *columns)

    return run


def _columns(logits: Tensor, temperature: float, top_k: int, top_p: float) -> list[Tensor]:
    ids = torch.arange(len(logits), device=logits.device)
    column = torch.ones(len(logits), device=logits.device)
    top_ks = torch.full_like(ids, top_k).int()
    return [ids, ids, column * temperature, top_ks, column * top_p, column * 0.0]


def _edits(logits: Tensor) -> Run:
    rows, vocab = logits.shape
    device, count = logits.device, min(PENALISED, vocab)
    starts = (torch.arange(rows + 1, device=device) * count).int()
    tokens = torch.cat([torch.randperm(vocab, device=device)[:count] for _ in range(rows)])
    ones, nobody = torch.ones(rows, device=device), torch.full((rows,), -1, device=device).int()
    none = torch.zeros(0, device=device)
    penalties = (starts, tokens.int(), torch.ones_like(tokens).int(), ones, ones * 0, ones * 0)
    return partial(edit_logits, logits, *penalties, nobody, starts * 0, none.int(), none)
