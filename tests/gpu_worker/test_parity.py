"""The embedded model against transformers, in float32: the same tokens however they are computed.

transformers computes each prompt with our whole answer at once: its most likely token at every
place must be the one that we chose there, so by induction its greedy answer is ours.
"""

import pydoc_data.topics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from common.config import WorkerSettings
from common.messages import Ending, RequestId
from common.model_files import EMBEDDED, locate
from common.tokenizer import Tokenizer
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import ModelEngine
from tests.gpu_worker.driving import Driver, logits_by_chunk, make_request

LENGTHS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 64, 65, 100, 127, 200, 333, 512, 700, 1000, 1500)
SHORT = (1, 2, 7, 16, 31, 130)  # for the run that every change pays for
TIGHT_BLOCKS = {LENGTHS: 110, SHORT: 13}  # of 16 tokens: one long request, or a few short ones


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ModelEngine:
    settings = WorkerSettings(
        dtype="float32",
        backend="cpu",
        num_blocks=500,
        max_model_len=2048,
        max_rows=32,
        max_step_tokens=512,  # the largest chunk that is tried below
        data_dir=str(tmp_path_factory.getbasetemp()),  # compiled kernels are shared
    )
    return load_engine(settings)


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """Weights and sizes as transformers' own conversion reads them."""
    path = str(locate(EMBEDDED, Path()).path)
    with torch.device("meta"):
        named_like_it = LlamaForCausalLM(LlamaConfig(num_hidden_layers=30))
    checkpoint = load_gguf_checkpoint(path, return_tensors=True, model_to_load=named_like_it)
    model = LlamaForCausalLM(LlamaConfig(**checkpoint["config"])).eval()
    missing, unexpected = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # which is the embedding
    model.tie_weights()
    return model


def make_prompts(lengths: Sequence[int]) -> dict[RequestId, list[int]]:
    """Prose of Python's own help, each prompt from another place."""
    text = "\n".join(pydoc_data.topics.topics.values())
    tokens = Tokenizer.load(locate(EMBEDDED, Path())).encode(text[:60_000])
    assert len(tokens) > 2 * sum(lengths)
    starts = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    return {
        RequestId(f"p{length}.0"): tokens[start : start + length]
        for start, length in zip(starts, lengths, strict=True)
    }


def run(
    engine: ModelEngine, prompts: dict[RequestId, list[int]], num_output: int, driver: Driver
) -> dict[RequestId, list[int]]:
    engine.reset()
    ending = Ending(max_tokens=num_output)
    return driver.run([make_request(name, prompt, ending) for name, prompt in prompts.items()])


@torch.no_grad()
def reference_logits(reference: LlamaForCausalLM, tokens: list[int], num_prompt: int) -> Tensor:
    """[num_output, V]: what each token of the answer was chosen from."""
    num_output = len(tokens) - num_prompt
    output = reference(torch.tensor([tokens[:-1]]), logits_to_keep=num_output)
    logits: Tensor = output.logits[0]
    return logits


@pytest.mark.parametrize(
    ("lengths", "num_output"),
    [
        pytest.param(SHORT, 12, id="short", marks=pytest.mark.timeout(600)),
        pytest.param(LENGTHS, 64, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(3000)]),
    ],
)
def test_tokens_are_those_of_transformers(
    engine: ModelEngine, reference: LlamaForCausalLM, lengths: tuple[int, ...], num_output: int
) -> None:
    prompts = make_prompts(lengths)
    one_by_one = Driver(engine, max_step_tokens=512, max_running=1)
    answers = run(engine, prompts, num_output, one_by_one)
    for name, prompt in prompts.items():
        logits = reference_logits(reference, prompt + answers[name], len(prompt))
        assert logits.argmax(-1).tolist() == answers[name], name
    for chunk in (7, 64, 512):
        together = Driver(engine, max_step_tokens=chunk)
        assert run(engine, prompts, num_output, together) == answers
    tight = Driver(engine, max_step_tokens=64, num_blocks=TIGHT_BLOCKS[lengths])
    longest_first = dict(sorted(prompts.items(), key=lambda item: -len(item[1])))
    assert run(engine, longest_first, num_output, tight) == answers
    assert sum(request.preemptions for request in tight.ended.values()) > 0


SCHEMES: list[dict[str, Any]] = [
    {"preemption": "swap"},
    {"preemption": "never", "policy": "shortest"},
    {"batching": "static", "prefill": "exclusive"},
    {"prefill": "whole", "policy": "fair", "prefix_cache": False},
    {"kv": "reserved", "prefix_cache": False},
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_no_scheme_changes_a_token(engine: ModelEngine, scheme: dict[str, Any]) -> None:
    """In a cache for some of them, each prompt twice, so that there is something to share."""
    prompts = make_prompts(LENGTHS[:16])
    prompts |= {RequestId(f"again.{name}"): prompt for name, prompt in prompts.items()}
    answers = run(engine, prompts, 32, Driver(engine, prefix_cache=False))
    tight = Driver(engine, max_step_tokens=512, num_blocks=40, **scheme)
    assert run(engine, prompts, 32, tight) == answers
    never_short = scheme.get("kv") == "reserved" or scheme.get("preemption") == "never"
    preempted = sum(request.preemptions for request in tight.ended.values())
    assert (preempted > 0) == (not never_short)
    swapped = sum(len(plan.swap_in) for plan in tight.plans)
    assert (swapped > 0) == (scheme is SCHEMES[0])


@pytest.mark.timeout(600)
def test_logits_are_those_of_transformers(engine: ModelEngine, reference: LlamaForCausalLM) -> None:
    prompt = make_prompts((300,))[RequestId("p300.0")]
    with torch.no_grad():
        truth = reference(torch.tensor([prompt])).logits[0]
    for stop, logits in logits_by_chunk(engine, prompt, 37):
        torch.testing.assert_close(logits, truth[stop - 1], atol=1e-4, rtol=1e-5)
