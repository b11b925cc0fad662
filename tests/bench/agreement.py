"""Whether `./chairlift bench` and guidellm say the same of one server whose steps take known time.

    python -m tests.bench.agreement --guidellm VENV --tokenizer FOLDER [--rounds 3] [--step-ms 50]

VENV is a virtual environment with guidellm, FOLDER has the model's tokenizer. The two take turns on
the same server and ask for the same prompts, which no cache shortens; each is asked for its own
figures, by its own definitions. The server's own time to the first token, by its metrics, stands
beside them: what a client takes from the server's processors shows there.

guidellm gets the prompts as a file. With --synthetic it makes its own ones while it measures, for
which it takes a whole core.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cli.bench import run
from cli.bench.load import make_prompt
from cli.bench.options import Options
from cli.bench.report import Report
from tests.bench.servers import chairlift, machine

OUTPUT_TOKENS = 32
FIGURES = (
    "TTFT median, ms",
    "TTFT mean, ms",
    "ITL mean, ms",
    "E2E mean, ms",
    "output tokens/s",
    "TTFT mean of the server's own, ms",
)
Figures = tuple[float, ...]


@dataclass(frozen=True)
class Load:
    streams: int

    @property
    def requests(self) -> int:
        return 15 if self.streams == 1 else 6 * self.streams


def main() -> None:
    options = arguments()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--prefix-cache", "off"]  # the second tool asks what the first one did
        if not options.model:
            flags += ["--backend", "simulated", "--step-ms", str(options.step_ms)]
        with chairlift(Path(folder), *flags) as server:
            for streams in options.streams:
                compare(server.url, Load(streams), options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guidellm", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--model", action="store_true", help="the embedded one, not simulated")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    # Several steps: what a client itself adds to the first token is a small part.
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--synthetic", action="store_true")
    return parser.parse_args()


def compare(url: str, load: Load, options: argparse.Namespace) -> None:
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for number in range(options.rounds):
        asked = bench_options(url, load, number, options.prompt_tokens)
        before = own_ttft(url)
        mine = ours_of(uvloop.run(run(asked)))
        between = own_ttft(url)
        other = guidellm(asked, options)
        ours.append((*mine, mean_of(before, between)))
        theirs.append((*other, mean_of(between, own_ttft(url))))
        print(load, ours[-1], theirs[-1], file=sys.stderr)
    print(f"\n| {load.streams} streams, {load.requests} requests | bench | guidellm | ratio |")
    print("|---|---:|---:|---:|")
    for index, name in enumerate(FIGURES):
        first, second = ([of[index] for of in found] for found in (ours, theirs))
        ratio = statistics.median(first) / statistics.median(second)
        print(f"| {name} | {told(first)} | {told(second)} | {ratio:.3f} |", flush=True)


def told(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def own_ttft(url: str) -> tuple[float, float]:
    """Of all requests so far, by the server's clock: how many, and seconds."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    count, total = (
        sum(float(line.split()[-1]) for line in lines if line.startswith(name))
        for name in ("chairlift_ttft_seconds_count", "chairlift_ttft_seconds_sum")
    )
    return count, total


def mean_of(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Milliseconds."""
    return 1e3 * (after[1] - before[1]) / (after[0] - before[0])


def bench_options(url: str, load: Load, seed: int, prompt_tokens: int) -> Options:
    return Options(
        url=url,
        concurrency=load.streams,
        requests=load.requests,
        prompt_tokens=prompt_tokens,
        output_tokens=OUTPUT_TOKENS,
        text=True,  # as guidellm sends it: the server has to tokenise it
        seed=seed + 1000 * load.streams,
    )


def ours_of(report: Report) -> Figures:
    if report.num_failed or report.notes():
        raise SystemExit(f"{report.errors} {report.notes()}")
    found = report.latencies()
    means = (1e3 * statistics.fmean(found[name]) for name in ("TTFT", "ITL", "E2E"))
    return (1e3 * statistics.median(found["TTFT"]), *means, report.rate(report.output_tokens))


def guidellm(asked: Options, options: argparse.Namespace) -> Figures:
    """As its own help shows it, with a path where it would download the tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        output, prompts = Path(folder) / "out.json", Path(folder) / "prompts.jsonl"
        data = f"kind=json_file,path={prompts}"
        if options.synthetic:
            data = "kind=synthetic_text,prompt_tokens={},output_tokens={}"
            data = data.format(options.prompt_tokens, OUTPUT_TOKENS)
        else:
            write_prompts(prompts, asked)
        command = [str(options.guidellm / "bin" / "guidellm"), "run", "--disable-console"]
        backend = f"kind=openai_http,target={asked.url},request_format=/v1/completions"
        command += ["--backend", backend]
        command += ["--profile", f"kind=concurrent,streams={asked.concurrency}"]
        command += ["--constraint", f"kind=max_requests,count={asked.requests}"]
        command += ["--tokenizer", f"kind=huggingface_auto,model={options.tokenizer}"]
        command += ["--data", data, "--seed", f"kind=static,value={asked.seed}"]
        command += ["--output", f"kind=json,path={output}"]
        environ = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
        metrics = json.loads(output.read_text())["benchmarks"][0]["metrics"]
    if metrics["request_totals"]["errored"]:
        raise SystemExit(f"guidellm: {metrics['request_totals']}")
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency")
    first, gap, seconds = (metrics[name]["successful"]["mean"] for name in names)
    median = metrics[names[0]]["successful"]["median"]
    rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    return (median, first, gap, 1e3 * seconds, rate)


def write_prompts(path: Path, asked: Options) -> None:
    """What bench asks for, as a data set of guidellm's."""
    with path.open("w") as file:
        for number in range(asked.requests or 0):
            prompt = make_prompt(asked, number)["prompt"]
            line = {"prompt": prompt, "output_tokens_count": OUTPUT_TOKENS}
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
