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
from gpu_worker.native.ops import native_ops
from gpu_worker.ops import Ops
from gpu_worker.triton_ops import triton_ops
from gpu_worker.weights import load_model, open_weights
from tests.gpu_worker.tiny import CPU, VOCAB, make_reference

BLOCK_SIZE, NUM_BLOCKS = 16, 40
GENERATOR = torch.Generator().manual_seed(3)
PROMPTS = [
    torch.randint(0, VOCAB, (count,), generator=GENERATOR).int() for count in (35, 20, 9, 44, 3)
]
Sizes = list[list[int]]  # tokens that each request computes in each step

ALONE: Sizes = [[35]]
CHUNKED: Sizes = [[7, 21, 1, 6]]
AMONG_OTHERS: Sizes = [[28, 1, 6], [20, 0, 0], [0, 8, 1], [1, 42, 1], [2, 1, 0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


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


def deterministic_ops(kernels: str, folder: Path) -> Ops:
    if kernels == "triton":
        return triton_ops(deterministic=True)
    return native_ops(folder, 2, quantization="int8" if kernels == "int8" else "none")


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


@pytest.mark.parametrize(("kernels", "family", "dtype"), CASES)
def test_logits_are_the_same_bits_in_any_company_and_any_chunks(
    kernels: str, family: str, dtype: torch.dtype, folder: Path, tmp_path: Path
) -> None:
    """Mistral's rows see a window of 24 tokens."""
    make_reference(family).save_pretrained(tmp_path)
    ops = deterministic_ops(kernels, folder)
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
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_reference(family).save_pretrained(tmp_path)
    given = {"model": str(tmp_path), "data_dir": str(tmp_path), "backend": "cpu", "threads": 1}
    settings = WorkerSettings(**given | {"deterministic": True} | changes)
    with pytest.raises(EngineError, match=f"--deterministic.*{message}"):
        load_engine(settings)


def test_weights_in_eight_bits_are_not_deterministic_on_a_gpu(tmp_path: Path) -> None:
    make_reference("mistral").save_pretrained(tmp_path)
    settings = WorkerSettings(deterministic=True, quantization="int8")
    config = open_weights(tmp_path).config
    with pytest.raises(EngineError, match="--deterministic on a GPU takes --quantization none"):
        check_deterministic(settings, triton_ops(), config, torch.bfloat16)


def test_a_deterministic_engine_is_loaded(tmp_path: Path) -> None:
    make_reference("mistral").save_pretrained(tmp_path)
    given = {"model": str(tmp_path), "data_dir": str(tmp_path), "backend": "cpu", "threads": 1}
    engine = load_engine(WorkerSettings(**given | {"deterministic": True, "kernels": "native"}))
    assert "native" in engine.capacity.device
