"""What the control plane costs: a simulated model of constant step time, and who takes the rest.

    python -m tests.bench.overhead [--streams 64] [--step-ms 10 5] [--repeats 3] [--json]

The ideal is one token a stream and step. Server and client share the machine. Refuses to report
when a request failed or an answer has a wrong length.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from cli.bench import run as put_load
from cli.bench.options import Options
from cli.bench.report import Report
from tests.bench.servers import Cpu, Server, chairlift, disk_milliseconds, machine, read_cpu


@dataclass(frozen=True)
class Measured:
    """One run at one step time."""

    step_ms: float
    steady_tokens_per_second: float  # while all streams run
    steady_seconds: float
    whole_tokens_per_second: float  # with the beginning and the end
    ideal_tokens_per_second: float
    itl_p50_ms: float
    itl_p99_ms: float
    longest_gap_ms: float
    cpu_ms_per_1000_tokens: dict[str, float]  # by role
    core_share: dict[str, float]  # by role, of the steady rate: 1 is a whole core
    disk_ms: tuple[float, float]  # until a write is on disk, before the runs: p50, p90
    others_cores: float  # kept busy by programs that are not ours

    @property
    def share(self) -> float:
        return self.steady_tokens_per_second / self.ideal_tokens_per_second

    @property
    def overhead_ms(self) -> float:
        """That a step takes beyond its own time."""
        steps = self.steady_tokens_per_second / (self.ideal_tokens_per_second * self.step_ms / 1e3)
        return 1e3 / steps - self.step_ms


def main() -> int:
    options = arguments()
    measured: list[Measured] = []
    for step_ms in options.step_ms:
        with tempfile.TemporaryDirectory(prefix="overhead-", dir=options.folder) as folder:
            disk = disk_milliseconds(Path(folder))
            flags = ("--backend", "simulated", "--step-ms", str(step_ms))
            with chairlift(Path(folder), *flags, *options.flags.split()) as server:
                measure(server, options, step_ms, disk, warmup=True)
                for _ in range(options.repeats):
                    measured.append(measure(server, options, step_ms, disk))
                    print(f"{step_ms:g} ms: {measured[-1].share:.1%}", file=sys.stderr)
    if options.json:
        print(json.dumps({"machine": machine(), "runs": [asdict(run) for run in measured]}))
    else:
        print(table(measured))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=600)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[10.0, 5.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the data lies; else the temporary folder")
    parser.add_argument("--flags", default="", help="more for `up`, in one string")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(
    server: Server,
    options: argparse.Namespace,
    step_ms: float,
    disk: tuple[float, float],
    *,
    warmup: bool = False,
) -> Measured:
    load = Options(
        url=server.url,
        concurrency=options.streams,
        requests=options.streams,
        prompt_tokens=options.prompt_tokens,
        output_tokens=60 if warmup else options.output_tokens,
        seed=time.monotonic_ns(),
    )
    report, used = uvloop.run(watched(server, load))
    check(report, load)
    rate, steady_seconds = steady(report)
    gaps = sorted(gap for sample in report.done for gap in sample.gaps)
    return Measured(
        step_ms=step_ms,
        steady_tokens_per_second=rate,
        steady_seconds=steady_seconds,
        whole_tokens_per_second=report.rate(report.output_tokens),
        ideal_tokens_per_second=options.streams * 1e3 / step_ms,
        itl_p50_ms=1e3 * gaps[len(gaps) // 2],
        itl_p99_ms=1e3 * gaps[len(gaps) * 99 // 100],
        longest_gap_ms=1e3 * gaps[-1],
        cpu_ms_per_1000_tokens={
            role: 1e6 * cpu / report.output_tokens for role, cpu in used.seconds.items()
        },
        core_share={role: cpu / report.output_tokens * rate for role, cpu in used.seconds.items()},
        disk_ms=disk,
        others_cores=used.others_cores,
    )


async def watched(server: Server, load: Options) -> tuple[Report, Cpu]:
    before = read_cpu(server)
    report = await put_load(load)
    return report, read_cpu(server).since(before)


def check(report: Report, load: Options) -> None:
    lengths = {sample.output_tokens for sample in report.samples}
    if report.num_failed or lengths != {load.output_tokens}:
        raise SystemExit(f"failed: {report.errors}, lengths {lengths}")


def steady(report: Report) -> tuple[float, float]:
    """Tokens a second of the window in which all streams have begun and none has ended.

    Where a frame carried several tokens, or a token gave no frame of its own, a stream's frames
    in the window stand for as many tokens as its frames do on the whole.
    """
    begin = max(sample.start + sample.frames[0] for sample in report.samples)
    end = min(sample.start + sample.frames[-1] for sample in report.samples)
    tokens = 0.0
    for sample in report.samples:
        inside = sum(begin < sample.start + moment <= end for moment in sample.frames)
        tokens += inside * sample.output_tokens / len(sample.frames)
    return tokens / (end - begin), end - begin


def table(measured: list[Measured]) -> str:
    lines = [machine(), ""]
    for step_ms in dict.fromkeys(run.step_ms for run in measured):
        runs = [run for run in measured if run.step_ms == step_ms]
        best = max(runs, key=lambda run: run.share)
        shares = ", ".join(f"{run.share:.1%}" for run in runs)
        others = ", ".join(f"{run.others_cores:.2f}" for run in runs)
        lines += [
            f"{step_ms:g} ms a step, ideal {best.ideal_tokens_per_second:.0f} tokens/s",
            f"  steady   {shares} of the ideal; others kept {others} cores busy",
            f"  best     {best.steady_tokens_per_second:.0f} tokens/s"
            f" = {best.share:.1%} over {best.steady_seconds:.1f} s;"
            f" {best.overhead_ms:.2f} ms a step beyond its own time",
            "  disk     a write takes p50 {:.2f}, p90 {:.2f} ms".format(*best.disk_ms),
            f"  whole    {best.whole_tokens_per_second:.0f} tokens/s with begin and end,"
            f" median {statistics.median(r.whole_tokens_per_second for r in runs):.0f}",
            f"  ITL      p50 {best.itl_p50_ms:.1f}, p99 {best.itl_p99_ms:.1f},"
            f" longest {best.longest_gap_ms:.1f} ms",
            "  CPU, best run     ms/1000 tokens   cores",
        ]
        for role, cost in sorted(best.cpu_ms_per_1000_tokens.items(), key=lambda item: -item[1]):
            lines.append(f"    {role:<15} {cost:>14.1f} {best.core_share[role]:>9.2f}")
        total = sum(best.core_share.values())
        lines += [f"    {'together':<30} {total:>9.2f}", ""]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    sys.exit(main())
