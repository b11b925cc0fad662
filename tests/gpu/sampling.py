"""Draws, which must be the reference's for every seed; edits, log-probabilities, newest tokens."""

import torch
from torch import Tensor

from gpu_worker.kernels.edit_logits import edit_logits_reference
from gpu_worker.kernels.edit_logits_triton import edit_logits
from gpu_worker.kernels.last_tokens import keep_tokens_reference, pick_tokens_reference
from gpu_worker.kernels.last_tokens_triton import keep_tokens, pick_tokens
from gpu_worker.kernels.logprobs import logprobs_reference
from gpu_worker.kernels.logprobs_triton import logprobs
from gpu_worker.kernels.sample import sample_reference
from gpu_worker.kernels.sample_triton import sample
from tests.gpu.cases import normal, on, poisoned
from tests.gpu.machine import Machine
from tests.gpu.report import Report

# Temperature, top_k, top_p, min_p. The last ones keep more than the kernel's short list has.
HOWS = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.5, 0, 1.0, 0.0),
    (1.0, 50, 1.0, 0.0),
    (0.8, 0, 0.95, 0.0),
    (1.5, 20, 0.7, 0.01),
    (1.0, 0, 1.0, 0.05),
    (1.0, 5, 1.0, 0.5),
    (4.0, 0, 0.999, 0.0),
    (5.0, 40_000, 1.0, 0.0),
]


def sampling(machine: Machine, report: Report) -> None:
    vocab = machine.pick(128_256, 300)
    with poisoned():
        for dtype, dry_rows in ((torch.float32, 5), (torch.bfloat16, 2)):
            with report.case(f"sample {dtype}"):
                _draws(machine, report, vocab, dtype, machine.pick(8 * len(HOWS), dry_rows))
        with report.case("rows that fail"):
            _failing(machine, report, vocab)
        with report.case("edit_logits"):
            _edits(machine, report, vocab)
        with report.case("logprobs"):
            _logprobs(machine, report, vocab)
        with report.case("newest tokens"):
            _newest(machine, report, machine.pick(300, 20))


def columns_of(num_rows: int) -> list[Tensor]:
    """Seed, position and parameters of rows, which go through HOWS in turn."""
    bounds = torch.iinfo(torch.int64)
    hows = [HOWS[row % len(HOWS)] for row in range(num_rows)]
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*hows, strict=True))
    return [
        torch.randint(bounds.min, bounds.max, (num_rows,)),
        torch.randint(0, 3000, (num_rows,)),
        temperature,
        top_k.int(),
        top_p,
        min_p,
    ]


def _draws(machine: Machine, report: Report, vocab: int, dtype: torch.dtype, num_rows: int) -> None:
    logits, columns = (normal(num_rows, vocab) * 2.5).to(dtype), columns_of(num_rows)
    expected, _ = sample_reference(logits.clone(), *columns)
    tokens, failed = sample(*on(machine.device, logits, *columns))
    report.equal(f"sample {dtype}", tokens, expected)
    report.holds(f"no row of {dtype} fails", not failed.any().item())


def _failing(machine: Machine, report: Report, vocab: int) -> None:
    logits, columns = normal(5, vocab), columns_of(5)
    logits[0, 3] = logits[1, vocab - 1] = torch.nan
    logits[2, 7] = torch.inf
    logits[3] = -torch.inf
    expected = sample_reference(logits.clone(), *columns)
    actual = sample(*on(machine.device, logits, *columns))
    report.equal("which rows fail", actual[1], expected[1])
    report.equal("tokens of rows that fail and of others", actual[0], expected[0])


def _edits(machine: Machine, report: Report, vocab: int) -> None:
    penalised, added = (700, 0, 1, 3, 520), (3, 0, 1100, 2, 1)
    most = min(700, vocab - 1)
    penalised, added = (
        [min(count, most) for count in penalised],
        [min(count, 2 * most) for count in added],
    )
    num_rows, logits = len(penalised), normal(len(penalised), vocab) * 3
    tokens = torch.stack([torch.randperm(vocab)[:most] for _ in penalised]).int()
    listed = torch.cat([row[:count] for row, count in zip(tokens, penalised, strict=True)])
    few = torch.randint(0, 40, (sum(added),)).int()  # so that a token comes more than once
    edits = (
        torch.tensor([0, *penalised]).cumsum(0).int(),
        listed,
        torch.randint(0, 4, listed.shape).int(),
        *(torch.rand(3, num_rows) + 0.5),
        torch.tensor([-1, 7, -1, vocab - 1, int(tokens[4, most // 2])]).int(),
        torch.tensor([0, *added]).cumsum(0).int(),
        few,
        normal(len(few)),
    )
    expected = logits.clone()
    edit_logits_reference(expected, *edits)
    [actual, *on_edits] = on(machine.device, logits, *edits)
    edit_logits(actual, *on_edits)
    report.equal("edit_logits", actual, expected)


def _logprobs(machine: Machine, report: Report, vocab: int) -> None:
    logits, tokens = normal(5, vocab) * 4, torch.randint(0, vocab, (5,))
    expected = logprobs_reference(logits, tokens, 20)
    chosen, top, top_tokens = logprobs(*on(machine.device, logits, tokens), 20)
    report.close_to("logprobs of the chosen", chosen, expected[0])
    report.close_to("logprobs of the likeliest", top, expected[1])
    report.equal("the likeliest", top_tokens, expected[2])


def _newest(machine: Machine, report: Report, count: int) -> None:
    rows = torch.randperm(2 * count)[:count].int()
    rows[::3] = -1
    tokens, newest = torch.randint(0, 128_256, (count,)), torch.randint(0, 99, (2 * count,)).int()
    known = torch.randint(100, 200, (count,)).int()
    expected = newest.clone()
    keep_tokens_reference(tokens, rows, expected)
    on_tokens, on_rows, on_newest, on_known = on(machine.device, tokens, rows, newest, known)
    keep_tokens(on_tokens, on_rows, on_newest)
    report.equal("keep_tokens", on_newest, expected)
    picked = pick_tokens(on_known, on_rows, on_newest)
    report.equal("pick_tokens", picked, pick_tokens_reference(known, rows, expected))
