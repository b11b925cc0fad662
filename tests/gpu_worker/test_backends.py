"""One model on all backends: the same tokens, whichever kernels compute them."""

from pathlib import Path

import pytest
import torch
import triton
from triton.runtime.build import compile_module_from_src
from triton.runtime.cache import get_cache_manager

from common.messages import Ending
from gpu_worker.ops import Ops, torch_ops
from gpu_worker.triton_build import set_cache_dir, set_compiler
from gpu_worker.triton_ops import triton_ops
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.choices import compiled
from tests.gpu_worker.driving import Driver, make_request
from tests.gpu_worker.tiny import CPU, make_engine, make_reference

PROMPTS = [[5, 9, 200, 31], [7], list(range(40, 71))]
NUM_TOKENS = 4


@pytest.fixture(scope="module", params=["qwen3", "mistral"])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_reference(request.param).save_pretrained(path)
    return path


def answers(model_path: Path, ops: Ops) -> dict[str, list[int]]:
    model = load_model(open_weights(model_path), ops, torch.float32, CPU, 512)
    driver = Driver(make_engine(model, num_blocks=40), max_step_tokens=12)
    ending = Ending(max_tokens=NUM_TOKENS)
    requests = [make_request(str(i), prompt, ending) for i, prompt in enumerate(PROMPTS)]
    return {str(name): tokens for name, tokens in driver.run(requests).items()}


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_native_kernels_give_the_tokens_of_the_references(
    quantization: str, model_path: Path, kernels: Path
) -> None:
    native = compiled("native", kernels, quantization)
    assert answers(model_path, native) == answers(model_path, torch_ops(quantization))


def test_triton_kernels_give_the_tokens_of_the_references(model_path: Path) -> None:
    found = answers(model_path, triton_ops())
    assert found == answers(model_path, torch_ops())
    assert [len(tokens) for tokens in found.values()] == [NUM_TOKENS] * len(PROMPTS)


def test_compiled_kernels_are_kept_where_the_backend_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")  # restored; the knob sets it too
    monkeypatch.setattr(triton.knobs.cache, "dir", "elsewhere")
    set_cache_dir(tmp_path / "kernels")
    kept = get_cache_manager("0123").put(b"code", "kernel.cubin")
    assert (tmp_path / "kernels") in Path(kept).parents


@pytest.mark.slow  # the compiler compiles its own library first
def test_what_launches_kernels_is_compiled_without_gcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # restored; the knob sets it too
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.build, "impl", None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "env").symlink_to("/usr/bin/env")
    monkeypatch.delenv("CC", raising=False)
    set_compiler(tmp_path)
    source = """
        #include <Python.h>
        static PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher"};
        PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
    """
    module = compile_module_from_src(source, "launcher", libraries=["libm.so.6"])
    assert module.__name__ == "launcher"


def test_a_compiler_that_triton_finds_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton.knobs.build, "impl", None)
    monkeypatch.setenv("CC", "/usr/bin/cc")
    set_compiler(tmp_path)
    assert triton.knobs.build.impl is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "cc").symlink_to("/bin/true")  # the name of it that Triton does not look for
    set_compiler(tmp_path)
    assert triton.knobs.build.impl.args == ((str(tmp_path / "cc"),),)
