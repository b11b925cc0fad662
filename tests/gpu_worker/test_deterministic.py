"""Deterministic operations: a request's logits are the same bits in any company and any chunks.

Triton's in its interpreter, and the CPU backend's, in which every step is.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.config import WorkerSettings
from gpu_worker.backend import check_deterministic
from gpu_worker.engine import EngineError
from gpu_worker.kv_cache import KVCache
from gpu_worker.llama import Inputs, Llama
from gpu_worker.loading import load_engine
from gpu_worker.ops import Ops
from gpu_worker.triton_ops import triton_ops
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.choices import COMPILED, compiled
from tests.gpu_worker.tiny import CPU, VOCAB, make_reference

BLOCK_SIZE, NUM_BLOCKS = 16, 128
GENERATOR = torch.Generator().manual_seed(3)
LENGTHS = (35, 20, 9, 44, 3, *range(10, 21))
PROMPTS = [torch.randint(0, VOCAB, (count,), generator=GENERATOR).int() for count in LENGTHS]
Sizes = list[list[int]]  # tokens that each request computes in each step

ALONE: Sizes = [[35]]
CHUNKED: Sizes = [[7, 21, 1, 6]]
AMONG_OTHERS: Sizes = [[28, 1, 6], [20, 0, 0], [0, 8, 1], [1, 42, 1], [2, 1, 0]]
SIXTEEN: Sizes = [[28, 1, 6], *([count - 1, 1, 0] for count in LENGTHS[1:])]  # all decode at once
THREADS = (1, 3, 4, 7)  # and 2
SLOW = pytest.mark.slow

pytestmark = pytest.mark.timeout(600)  # compiles, maybe on a machine that is busy


def table(request: int) -> Tensor:
    """Eight blocks of a request, spread over the pool."""
    return torch.arange(8).mul(len(PROMPTS)).add(request).int()


def inputs_of(chunks: list[tuple[int, int, int]]) -> Inputs:
    """A step that computes [start, stop) of each (request, start, stop), and samples after each."""
    positions = [torch.arange(start, stop) for _, start, stop in chunks]
    slots = [
        table(request).long()[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
        for (request, _, _), at in zip(chunks, positions, strict=True)
    ]
    ends = torch.tensor([stop - start for _, start, stop in chunks]).cumsum(0)
    return Inputs(
        tokens=torch.cat([PROMPTS[request][start:stop] for request, start, stop in chunks]),
        positions=torch.cat(positions).int(),
        slot_mapping=torch.cat(slots),
        block_tables=torch.stack([table(request) for request, _, _ in chunks]),
        cu_seqlens=torch.nn.functional.pad(ends, (1, 0)).int(),
        lengths=torch.tensor([stop for _, _, stop in chunks]).int(),
        last=ends - 1,
    )


def all_logits(model: Llama, dtype: torch.dtype, sizes: Sizes) -> dict[tuple[int, int], Tensor]:
    """The logits [V] after so many tokens of a request, by (request, tokens)."""
    cache = KVCache.allocate(model.config, NUM_BLOCKS, BLOCK_SIZE, dtype, CPU)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    known = [0] * len(sizes)
    logits = {}
    for counts in zip(*sizes, strict=True):
        chunks = [(r, known[r], known[r] + count) for r, count in enumerate(counts) if count]
        chunks.reverse()  # the first request comes last, behind all others
        for (r, _, stop), row in zip(chunks, model.forward(inputs_of(chunks), cache), strict=True):
            known[r], logits[r, stop] = stop, row
    return logits


def deterministic_ops(choice: str, kernels: Path) -> Ops:
    if choice == "triton":
        return triton_ops(deterministic=True)
    return compiled("native", kernels, "int8" if choice == "int8" else "none")


CASES = [
    pytest.param("native", "llama", torch.float32, id="native-llama-fp32"),
    pytest.param("native", "mistral", torch.float32, id="native-mistral-fp32"),
    pytest.param("native", "llama", torch.bfloat16, id="native-llama-bf16"),
    pytest.param("native", "mistral", torch.bfloat16, id="native-mistral-bf16"),
    pytest.param("int8", "mistral", torch.bfloat16, id="int8-mistral-bf16"),
    pytest.param("triton", "mistral", torch.float32, id="triton-mistral-fp32"),
    *(
        pytest.param("triton", family, dtype, id=f"triton-{family}-{name}", marks=pytest.mark.slow)
        for family, dtype, name in (
            ("llama", torch.float32, "fp32"),
            ("llama", torch.bfloat16, "bf16"),
            ("mistral", torch.bfloat16, "bf16"),
        )
    ),
]


@pytest.mark.parametrize(("choice", "family", "dtype"), CASES)
def test_logits_are_the_same_bits_in_any_company_and_any_chunks(
    choice: str, family: str, dtype: torch.dtype, kernels: Path, tmp_path: Path
) -> None:
    """Mistral's rows see a window of 24 tokens."""
    make_reference(family).save_pretrained(tmp_path)
    ops = deterministic_ops(choice, kernels)
    model = load_model(open_weights(tmp_path), ops, dtype, CPU, 512)
    alone, chunked, among = (
        all_logits(model, dtype, sizes) for sizes in (ALONE, CHUNKED, AMONG_OTHERS)
    )
    assert torch.equal(alone[0, 35], chunked[0, 35])
    assert torch.equal(alone[0, 35], among[0, 35])
    for stop in (28, 29):
        assert torch.equal(chunked[0, stop], among[0, stop])
    assert alone[0, 35].isfinite().all()
    assert not torch.equal(chunked[0, 28], chunked[0, 29])


TYPES = {
    "fp32": (torch.float32, "none"),
    "bf16": (torch.bfloat16, "none"),
    "int8": (torch.bfloat16, "int8"),
    "int8-fp32": (torch.float32, "int8"),
}
USUAL = {("biased", "fp32"), ("biased", "bf16"), ("biased", "int8"), ("mistral", "bf16")}
MODELS = [
    pytest.param(
        *(family, *given), id=f"{family}-{name}", marks=[] if (family, name) in USUAL else SLOW
    )
    for family in ("biased", "mistral")
    for name, given in TYPES.items()
]


@pytest.fixture
def model(
    choice: str,
    family: str,
    dtype: torch.dtype,
    quantization: str,
    kernels: Path,
    tmp_path: Path,
) -> Llama:
    make_reference(family).save_pretrained(tmp_path)
    ops = compiled(choice, kernels, quantization)
    return load_model(open_weights(tmp_path), ops, dtype, CPU, 512)


@pytest.mark.parametrize(("family", "dtype", "quantization"), MODELS)
@pytest.mark.parametrize("choice", COMPILED)
def test_one_of_sixteen_by_every_choice(model: Llama, dtype: torch.dtype) -> None:
    """Chunks of prompts together, then sixteen that decode together."""
    among = all_logits(model, dtype, SIXTEEN)
    chunked = all_logits(model, dtype, CHUNKED)
    for stop in (28, 29, 35):
        assert torch.equal(chunked[0, stop], among[0, stop])
    for request in (1, 3, 4, 15):
        count = LENGTHS[request]
        alone = all_logits(model, dtype, [*[[0]] * request, [count]])
        assert torch.equal(alone[request, count], among[request, count])


@pytest.mark.parametrize(("family", "dtype", "quantization"), MODELS)
@pytest.mark.parametrize("choice", COMPILED)
def test_any_number_of_threads_by_every_choice(
    choice: str, model: Llama, dtype: torch.dtype, kernels: Path
) -> None:
    expected = all_logits(model, dtype, SIXTEEN)
    assert all(row.isfinite().all() for row in expected.values())
    try:
        for threads in THREADS:
            compiled(choice, kernels, threads=threads)  # the model's library
            found = all_logits(model, dtype, SIXTEEN)
            for which, row in expected.items():
                assert torch.equal(found[which], row), (threads, which)
    finally:
        compiled(choice, kernels)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        pytest.param("mistral", {"kernels": "torch"}, "--kernels native", id="references"),
        pytest.param("mistral", {"dtype": "float16"}, "--dtype bfloat16", id="other-type"),
        pytest.param("llama", {}, "multiples of 16", id="other-widths"),
        pytest.param("mistral", {"tensor_parallel": 2}, "one rank", id="ranks"),
    ],
)
def test_what_cannot_be_deterministic_is_refused(
    family: str, changes: dict[str, Any], message: str, kernels: Path, tmp_path: Path
) -> None:
    make_reference(family).save_pretrained(tmp_path)
    given = {"model": str(tmp_path), "data_dir": str(kernels), "backend": "cpu", "threads": 1}
    settings = WorkerSettings(**given | {"deterministic": True} | changes)
    with pytest.raises(EngineError, match=f"--deterministic.*{message}"):
        load_engine(settings)


def test_weights_in_eight_bits_are_not_deterministic_on_a_gpu(tmp_path: Path) -> None:
    make_reference("mistral").save_pretrained(tmp_path)
    settings = WorkerSettings(deterministic=True, quantization="int8")
    config = open_weights(tmp_path).config
    with pytest.raises(EngineError, match="--deterministic on a GPU takes --quantization none"):
        check_deterministic(settings, triton_ops(), config, torch.bfloat16)


def test_a_deterministic_engine_is_loaded(kernels: Path, tmp_path: Path) -> None:
    make_reference("mistral").save_pretrained(tmp_path)
    given = {"model": str(tmp_path), "data_dir": str(kernels), "backend": "cpu", "threads": 1}
    engine = load_engine(WorkerSettings(**given | {"deterministic": True, "kernels": "native"}))
    assert "native" in engine.capacity.device
