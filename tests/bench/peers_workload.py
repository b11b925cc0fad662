"""What each server is put through, and the figures that come of it."""

import json
from dataclasses import dataclass
from itertools import takewhile

from cli.bench import first_model
from cli.bench import run as put_load
from cli.bench.http import Server as Address
from cli.bench.http import exchange
from cli.bench.options import Options
from cli.bench.report import Report, percentile
from tests.bench.gap import measure_gap
from tests.bench.servers import Server, read_cpu

TEXTS = (
    "The capital of France is",
    "Water boils when",
    "Once upon a time there was a little",
    "def fibonacci(n):",
    "The three laws of motion say that",
)
TEXT_TOKENS = 24

Figures = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much of each workload."""

    single_requests: int = 8
    many_requests: int = 64
    concurrency: int = 16
    prompt_tokens: int = 128
    output_tokens: int = 128
    wide_requests: int = 64
    wide_concurrency: int = 64
    prompts: int = 12
    prompts_tokens: int = 1024
    prompts_concurrency: int = 4
    gap_streams: int = 8
    gap_output_tokens: int = 400
    long_prompt_tokens: int = 1500


QUICK = Sizes(
    single_requests=2,
    many_requests=16,
    output_tokens=32,
    wide_requests=64,
    prompts=4,
    gap_output_tokens=200,
)


class WorkloadError(Exception):
    """A request failed, so nothing is reported."""


async def measure(server: Server, sizes: Sizes, seed: int) -> tuple[Figures, tuple[str, ...]]:
    """The figures of one server, and its greedy answers to `TEXTS`, which also warm it up."""
    model = await first_model(Address.parse(server.url))
    texts = tuple([await answer(server.url, model, text) for text in TEXTS])
    before = read_cpu(server)
    lengths = sizes.prompt_tokens, sizes.output_tokens
    single = await load(server.url, sizes.single_requests, 1, *lengths, seed)
    many = await load(server.url, sizes.many_requests, sizes.concurrency, *lengths, seed + 100)
    wide = await load(server.url, sizes.wide_requests, sizes.wide_concurrency, *lengths, seed + 300)
    prompts = await load(
        server.url, sizes.prompts, sizes.prompts_concurrency, sizes.prompts_tokens, 1, seed + 400
    )
    gap = await measure_gap(
        server.url,
        model,
        seed + 200,
        streams=sizes.gap_streams,
        output_tokens=sizes.gap_output_tokens,
        long_prompt_tokens=sizes.long_prompt_tokens,
    )
    figures = {
        "single_rate": single.rate(single.output_tokens),
        "single_itl": middle(single, "ITL", 50),
        "single_ttft": middle(single, "TTFT", 50),
        "many_rate": many.rate(many.output_tokens),
        "many_ttft": middle(many, "TTFT", 50),
        "many_itl": middle(many, "ITL", 50),
        "many_itl_p99": middle(many, "ITL", 99),
        "wide_rate": wide.rate(wide.output_tokens),
        "prompt_rate": prompts.rate(sizes.prompts * sizes.prompts_tokens),
        "gap": 1e3 * gap.longest_seconds,
        "gap_usual": 1e3 * gap.usual_seconds,
        "gap_ttft": 1e3 * gap.long_ttft_seconds,
        "start": server.start_seconds,
        "others": read_cpu(server).since(before).others_cores,
    }
    return figures, texts


async def load(
    url: str, requests: int, concurrency: int, prompt_tokens: int, output_tokens: int, seed: int
) -> Report:
    """Greedy, prompts of random token ids, answers that go on after an end token."""
    options = Options(
        url=url,
        concurrency=concurrency,
        requests=requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seed=seed,
        warmup=1,
    )
    report = await put_load(options)
    lengths = {sample.output_tokens for sample in report.samples}
    if report.num_failed or lengths != {output_tokens}:
        raise WorkloadError(f"{url}: failed {report.errors}, answers of {lengths} tokens")
    return report


def middle(report: Report, name: str, percent: float) -> float:
    """A percentile of a latency, in milliseconds."""
    return 1e3 * percentile(sorted(report.latencies()[name]), percent)


async def answer(url: str, model: str, prompt: str) -> str:
    """The greedy text."""
    server = Address.parse(url)
    body = {"model": model, "prompt": prompt, "max_tokens": TEXT_TOKENS, "temperature": 0.0}
    received = bytearray()
    request = server.request("POST", "/v1/completions", json.dumps(body).encode())
    status = await exchange(server, request, received.extend)
    if status != 200:
        raise WorkloadError(f"{url}: HTTP {status} {received[:200].decode(errors='replace')}")
    return str(json.loads(received)["choices"][0]["text"])


def agreement(a: str, b: str) -> float:
    """Share of the longer text over which they agree from the start."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in same) / max(len(a), len(b), 1)
