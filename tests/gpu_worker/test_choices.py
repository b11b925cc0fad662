"""Whole models by every choice of compiler, instruction set and type.

What is right is what transformers say in float32, and for eight bits the references.
"""

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.messages import Ending, RequestId
from gpu_worker.llama import Llama
from gpu_worker.native import build as build_module
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.choices import CHOICES, COMPILED, MACROS, command_of, compiled
from tests.gpu_worker.driving import Driver, logits_by_chunk, make_request
from tests.gpu_worker.tiny import CPU, VOCAB, make_engine, make_reference

FAMILIES = ("mistral", "qwen3", "biased")
pytestmark = pytest.mark.timeout(600)  # compiles, maybe on a machine that is busy

PROMPT = torch.randint(0, VOCAB, (100,), generator=torch.Generator().manual_seed(3)).tolist()
BLOCK_SIZE = 16  # for which there are kernels that take bfloat16 as it is

Make = Callable[[str, str, torch.dtype, str], Llama]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, folder in folders.items():
        make_reference(family).save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def make(paths: dict[str, Path], kernels: Path) -> Make:
    """A family's model by a choice, in a type, rounded to eight bits or not."""

    def load(choice: str, family: str, dtype: torch.dtype, quantization: str) -> Llama:
        ops = compiled(choice, kernels, quantization)
        return load_model(open_weights(paths[family]), ops, dtype, CPU, 512)

    return load


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request: pytest.FixtureRequest) -> tuple[str, PreTrainedModel]:
    return request.param, make_reference(request.param)


@torch.no_grad()
def truth_of(reference: PreTrainedModel, tokens: list[int]) -> Tensor:
    """[len(tokens), V]"""
    logits: Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits


def all_logits(model: Llama, chunk: int) -> Tensor:
    """[chunks, V]: after each chunk of the prompt."""
    engine = make_engine(model, block_size=BLOCK_SIZE)
    return torch.stack([logits for _, logits in logits_by_chunk(engine, PROMPT, chunk)])


def off(actual: Tensor, expected: Tensor) -> float:
    """The length of the error, as a share of what it should be."""
    length = torch.linalg.vector_norm
    return float(length(actual - expected) / length(expected))


@pytest.mark.parametrize("choice", CHOICES)
def test_the_compiler_is_told_which_instructions_there_are(choice: str, tmp_path: Path) -> None:
    command = command_of(choice, tmp_path)
    flags = build_module.flags_of(command)
    source = tmp_path / "empty.c"
    source.touch()
    shown = subprocess.run(
        [*command, *flags, "-dM", "-E", str(source)], capture_output=True, text=True, check=True
    )
    defined = {line.split()[1] for line in shown.stdout.splitlines()}
    if CHOICES[choice].options:
        assert defined & MACROS == CHOICES[choice].has
    else:
        assert build_module.TARGET in flags


def test_each_choice_is_a_library_of_its_own(tmp_path: Path) -> None:
    commands = [("cc",), ("cc", "-march=x86-64-v3"), ("cc", "-march=x86-64-v4", "-mavx512vnni")]
    found = subprocess.CompletedProcess((), 0, "the same compiler", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_run", lambda _command: found)
        keys = {build_module._key(command) for command in commands}
    assert len(keys) == len(commands)


@pytest.mark.parametrize("choice", COMPILED)
def test_float32_is_that_of_transformers(
    choice: str, reference: tuple[str, PreTrainedModel], make: Make
) -> None:
    family, transformer = reference
    model = make(choice, family, torch.float32, "none")
    truth = truth_of(transformer, PROMPT)
    for chunk in (7, 100):
        engine = make_engine(model, block_size=BLOCK_SIZE)
        for stop, logits in logits_by_chunk(engine, PROMPT, chunk):
            torch.testing.assert_close(logits, truth[stop - 1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("choice", COMPILED)
def test_greedy_tokens_are_those_of_transformers(
    choice: str, reference: tuple[str, PreTrainedModel], make: Make
) -> None:
    """In batches of ten, while prompts come in chunks."""
    family, transformer = reference
    model = make(choice, family, torch.float32, "none")
    engine = make_engine(model, block_size=BLOCK_SIZE)
    prompts = {f"r.{start}": PROMPT[start : 4 * start + 2] for start in range(1, 13)}
    answers = Driver(engine, max_step_tokens=24, max_running=10).run(
        [make_request(name, prompt, Ending(max_tokens=6)) for name, prompt in prompts.items()]
    )
    for name, prompt in prompts.items():
        answer = answers[RequestId(name)]
        truth = truth_of(transformer, prompt + answer).argmax(-1).tolist()
        assert answer == truth[len(prompt) - 1 : -1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", COMPILED)
def test_bfloat16_is_as_near_as_that_of_torch(choice: str, family: str, make: Make) -> None:
    """Token by token: 100 rows, whose errors together are the same for whoever rounds as often."""
    transformer = make_reference(family)
    for parameter in transformer.parameters():  # weights are rounded, nothing else
        parameter.data = parameter.data.bfloat16().float()
    truth = truth_of(transformer, PROMPT)
    usual = off(all_logits(make("torch", family, torch.bfloat16, "none"), 1), truth)
    assert 0.005 < usual < 0.03
    model = make(choice, family, torch.bfloat16, "none")
    assert off(all_logits(model, 1), truth) < 1.1 * usual
    assert off(all_logits(model, 25), truth[24::25]) < 1.3 * usual  # four rows


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", COMPILED)
def test_eight_bits_are_as_near_as_those_of_the_references(
    choice: str, family: str, make: Make
) -> None:
    """Where rounding to float32 moves an input across a half, eight bits differ by one."""
    expected = all_logits(make("torch", family, torch.float32, "int8"), 1)
    assert off(all_logits(make(choice, family, torch.float32, "int8"), 1), expected) < 0.02
    usual = off(all_logits(make("torch", family, torch.bfloat16, "int8"), 1), expected)
    found = off(all_logits(make(choice, family, torch.bfloat16, "int8"), 1), expected)
    assert found < 1.15 * usual < 0.1


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_threads_of_torch_change_no_more_than_rounding_does(quantization: str, make: Make) -> None:
    """The references promise no bits."""
    model = make("torch", "biased", torch.float32, quantization)
    expected = all_logits(model, 25)
    torch.set_num_threads(2)
    try:
        found = all_logits(model, 25)
    finally:
        torch.set_num_threads(1)
    assert off(found, expected) < (1e-5 if quantization == "none" else 0.02)


@pytest.mark.parametrize(
    "is_wheel",
    [pytest.param(False, id="cc"), pytest.param(True, id="ziglang", marks=pytest.mark.slow)],
)
def test_amx_compiles_without_a_warning(is_wheel: bool, tmp_path: Path) -> None:
    """What few machines can run, all can compile."""
    if platform.machine() != "x86_64":
        pytest.skip("AMX is x86-64's")
    command = command_of("ziglang" if is_wheel else "native", tmp_path)
    has_amx = tmp_path / "amx.h"
    has_amx.write_text("#if !defined(__AMX_BF16__)\n#error no AMX\n#endif\n")
    strict = ("-march=sapphirerapids", "-Wall", "-Wextra", "-Werror", "-include", str(has_amx))
    build_module._compile((*command, *strict), tmp_path / "kernels.so")
    assert (tmp_path / "kernels.so").exists()
