"""Whether `./chairlift bench` and guidellm say the same of one server whose steps take known time.

    python -m tests.bench.agreement --guidellm VENV --tokenizer FOLDER [--rounds 3] [--step-ms 50]

VENV is a virtual environment with guidellm, FOLDER has the model's tokenizer. The two take turns on
the same server; each is asked for its own figures, by its own definitions.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cli.bench import run
from cli.bench.options import Options
from cli.bench.report import Report
from tests.bench.servers import chairlift, machine

PROMPT_TOKENS = 2000  # several steps: what a client itself adds to the first token is a small part
OUTPUT_TOKENS = 32
USAGE = {"include_usage": True, "continuous_usage_stats": False}
FIGURES = ("TTFT mean, ms", "ITL mean, ms", "E2E mean, ms", "output tokens/s")
Figures = tuple[float, ...]


@dataclass(frozen=True)
class Load:
    streams: int
    requests: int


LOADS = (Load(1, 8), Load(8, 32))


def main() -> None:
    options = arguments()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--backend", "simulated", "--step-ms", str(options.step_ms))
        with chairlift(Path(folder), *flags) as server:
            for load in LOADS:
                compare(server.url, load, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guidellm", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=50.0)
    return parser.parse_args()


def compare(url: str, load: Load, options: argparse.Namespace) -> None:
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for number in range(options.rounds):
        ours.append(ours_of(uvloop.run(run(bench_options(url, load, number)))))
        theirs.append(guidellm(url, load, number, options))
        print(load, ours[-1], theirs[-1], file=sys.stderr)
    print(f"\n| {load.streams} streams, {load.requests} requests | bench | guidellm | ratio |")
    print("|---|---:|---:|---:|")
    for index, name in enumerate(FIGURES):
        mine, other = ([of[index] for of in found] for found in (ours, theirs))
        ratio = statistics.median(mine) / statistics.median(other)
        print(f"| {name} | {told(mine)} | {told(other)} | {ratio:.3f} |", flush=True)


def told(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def bench_options(url: str, load: Load, seed: int) -> Options:
    return Options(
        url=url,
        concurrency=load.streams,
        requests=load.requests,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        text=True,  # as guidellm sends it: the server has to tokenise it
        seed=seed + 1000 * load.streams,
    )


def ours_of(report: Report) -> Figures:
    if report.num_failed or report.notes():
        raise SystemExit(f"{report.errors} {report.notes()}")
    found = report.latencies()
    means = (1e3 * statistics.fmean(found[name]) for name in ("TTFT", "ITL", "E2E"))
    return (*means, report.rate(report.output_tokens))


def guidellm(url: str, load: Load, seed: int, options: argparse.Namespace) -> Figures:
    backend = {
        "kind": "openai_http",
        "target": url,
        "model": "SmolLM2-135M-Instruct",
        "request_format": "/v1/completions",
        "extras": {"body": {"stream_options": USAGE}},
    }
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.json"
        data = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
        command = [str(options.guidellm / "bin" / "guidellm"), "run", "--disable-console"]
        command += ["--backend", json.dumps(backend)]
        command += ["--profile", f"kind=concurrent,streams={load.streams}"]
        command += ["--constraint", f"kind=max_requests,count={load.requests}"]
        command += ["--tokenizer", f"kind=huggingface_auto,model={options.tokenizer}"]
        command += ["--data", f"kind=synthetic_text,{data}"]
        command += ["--seed", f"kind=static,value={seed + 1000 * load.streams}"]
        command += ["--output", f"kind=json,path={output}"]
        environ = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
        metrics = json.loads(output.read_text())["benchmarks"][0]["metrics"]
    if metrics["request_totals"]["errored"]:
        raise SystemExit(f"guidellm: {metrics['request_totals']}")
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency")
    first, gap, seconds = (metrics[name]["successful"]["mean"] for name in names)
    return (first, gap, 1e3 * seconds, metrics["output_tokens_per_second"]["successful"]["mean"])


if __name__ == "__main__":
    main()
