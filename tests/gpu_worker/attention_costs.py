"""What attention has to move and compute in one layer of Llama 3.1 8B, and the least time for it.

The plan of the step, as the launcher makes it for an H200, says what splits cost on top.
"""

from gpu_worker.kernels.attention_plan import Plan, Schedule, make_plan
from tests.gpu_worker.kernel_costs import Cost, D, G, H

CONTEXTS = (1024, 8192)
# Of the floor's speed, by bytes of a cached number: with splits, without; the manual has reasons.
SHARES = {2: (0.8, 0.7), 1: (0.7, 0.55)}
SHARE_OF_PROMPT = 0.45


def decode(sequences: int, context: int, kv_bytes: int) -> tuple[Plan, Cost]:
    """One row for each sequence over a context of equal length."""
    cut = make_plan(sequences, sequences, G, H // G, D, context, Schedule())
    cached = sequences * context * 2 * G * D * kv_bytes
    rows = 2 * 2 * sequences * H * D  # q and out
    parts = 2 * 4 * cut.num_splits * sequences * H * (D + 2) if cut.num_splits > 1 else 0
    kind = "bf16" if kv_bytes == 2 else "fp8"
    return cut, Cost(
        f"decode, {kind} cache",
        sequences,
        cached + rows + parts,
        4 * sequences * context * H * D,
        launches=1 + (cut.num_splits > 1),
        share=SHARES[kv_bytes][cut.num_splits == 1],
    )


def prompt(rows: int, before: int) -> tuple[Plan, Cost]:
    """A chunk of one prompt over what is cached before it: half of the last square is computed."""
    context = before + rows
    cut = make_plan(rows, 1, G, H // G, D, context, Schedule())
    flops = 4 * H * D * (rows * before + rows * (rows + 1) // 2)
    num_bytes = 2 * 2 * G * D * context + 2 * 2 * rows * H * D
    parts = 2 * 4 * cut.num_splits * rows * H * (D + 2) if cut.num_splits > 1 else 0
    launches = 1 + (cut.num_splits > 1)
    return cut, Cost("prompt", rows, num_bytes + parts, flops, launches, share=SHARE_OF_PROMPT)


def table() -> str:
    steps = [
        (context, *decode(sequences, context, kv_bytes))
        for kv_bytes in (2, 1)
        for sequences in (16, 64)
        for context in CONTEXTS
    ]
    steps += [(2048 + before, *prompt(2048, before)) for before in (0, 6144)]
    lines = [
        "| step | rows | context | splits | MB | GFLOP | floor, µs | bound by | predicted, µs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for context, cut, cost in steps:
        moving = cost.num_bytes / 4.3e6 >= cost.floor_us
        lines.append(
            f"| {cost.name} | {cost.num_rows} | {context} | {cut.num_splits} "
            f"| {cost.num_bytes / 1e6:.3g} | {cost.flops / 1e9:.3g} | {cost.floor_us:.3g} "
            f"| {'memory' if moving else 'arithmetic'} | {cost.predicted_us:.3g} |"
        )
    return "\n".join(lines)
