"""What kernels have to move and compute, and the least time that takes on an H200.

python -m tests.gpu_worker.kernel_costs     writes the table into docs/kernels.md
"""

from dataclasses import dataclass
from pathlib import Path

MANUAL = Path(__file__).parents[2] / "docs/kernels.md"
BEGIN, END = "<!-- costs: begin -->", "<!-- costs: end -->"
BYTES_A_US, FLOPS_A_US = 4.3e6, 790e6  # measured on an H200: 4.3 TB/s, 790 TFLOP/s in bfloat16
E, F, V, H, G, D = 4096, 14336, 128256, 32, 8, 128  # Llama 3.1 8B


@dataclass(frozen=True)
class Cost:
    name: str
    num_rows: int
    num_bytes: int
    flops: int
    launches: int = 1
    share: float = 0.85  # of the floor's speed that such a kernel is expected to reach
    waits_us: float = 0.0  # of steps that wait for each other

    @property
    def floor_us(self) -> float:
        return max(self.num_bytes / BYTES_A_US, self.flops / FLOPS_A_US)

    @property
    def predicted_us(self) -> float:
        """2 microseconds a launch: to start in a graph, a way to memory and back, to drain."""
        return 2 * self.launches + self.floor_us / self.share + self.waits_us


def layer_costs(n: int) -> list[Cost]:
    return [
        Cost("rms_norm with residual", n, 8 * n * E, 6 * n * E),
        Cost("embed_norm", n, 6 * n * E, 5 * n * E),
        Cost("rotary_kv_write", n, n * (4 * (H + 2 * G) * D + 4 * D), 3 * n * (H + G) * D),
        Cost("rotary_kv_write fp8", n, n * (4 * H * D + 6 * G * D + 4 * D), 20 * n * (H + G) * D),
        Cost("silu_mul, gelu_mul", n, 6 * n * F, 10 * n * F),
    ]


def sampling_costs(n: int) -> list[Cost]:
    logits = 4 * n * V
    return [
        Cost("last_norm", n, 6 * n * E, 6 * n * E),
        Cost("pick_tokens", n, 16 * n, 0),
        Cost("keep_tokens", n, 16 * n, 0),
        # Of 1000 penalised tokens a row; logits lie apart, in sectors of 32 bytes. Two blocks,
        # in each of which the logits wait for the tokens.
        Cost("edit_logits", n, 72 * 1000 * n, 8 * 1000 * n, waits_us=3),
        Cost("sample, greedy", n, logits, n * V, launches=2),
        Cost("sample, no filter", n, 2 * logits, 20 * n * V, launches=3),
        # 14 + 14 + 18 steps over a list in the first cache, 0.3 to 0.5 microseconds each
        Cost("sample, top-k, top-p", n, 3 * logits, 25 * n * V, launches=3, waits_us=18),
        # 18 passes of one processor over half a megabyte of the second cache, 5 microseconds each
        Cost("sample, top-p, flat", n, 3 * logits, 25 * n * V, launches=3, waits_us=90),
        Cost("logprobs, 20 likeliest", n, logits, 60 * n * V, launches=2, waits_us=8),
    ]


def matmul_costs(n: int) -> list[Cost]:
    """The layer from F to E; the one with four bits in two parts, whose sums are added up."""
    flops, rows = 2 * n * F * E, 2 * n * (F + E)
    int4 = F * E // 2 + 8 * F * E // 128 + rows + 16 * n * E
    return [
        Cost("small_matmul bf16", n, 2 * F * E + rows, flops, share=0.8),
        Cost("small_matmul int8, fp8", n, F * E + rows, flops, share=0.8),
        Cost("int4_matmul", n, int4, flops, launches=2, share=0.8),
    ]


def fixed_costs(n: int) -> list[Cost]:
    """The layer from F to E, and the one from E to 2F.

    Of few rows, 64 programs on 132 processors have just enough under way; of many, a tile's loads
    from the second cache at some 5.5 TB/s bound its products.
    """
    narrow, wide = (0.6, 0.8) if n <= 64 else (0.22, 0.45)
    return [
        Cost("fixed_matmul, F to E", n, 2 * F * E + 2 * n * (F + E), 2 * n * F * E, share=narrow),
        Cost(
            "fixed_matmul, E to 2F", n, 4 * F * E + 2 * n * (2 * F + E), 4 * n * F * E, share=wide
        ),
    ]


def table() -> str:
    costs = [cost for n in (1, 64, 8192) for cost in layer_costs(n)]
    costs += [cost for n in (1, 64) for cost in sampling_costs(n)]
    costs += [cost for n in (1, 16, 64) for cost in matmul_costs(n)]
    costs += [cost for n in (1, 64, 8192) for cost in fixed_costs(n)]
    lines = [
        "| kernel | rows | MB | MFLOP | floor, µs | predicted, µs |",
        "|---|---|---|---|---|---|",
    ]
    for cost in costs:
        numbers = (cost.num_bytes / 1e6, cost.flops / 1e6, cost.floor_us, cost.predicted_us)
        cells = " | ".join(f"{number:.3g}" for number in numbers)
        lines.append(f"| {cost.name} | {cost.num_rows} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    manual = MANUAL.read_text()
    before, after = manual[: manual.index(BEGIN)], manual[manual.index(END) :]
    MANUAL.write_text(f"{before}{BEGIN}\n{table()}\n{after}")
