"""Every family against transformers, weights drawn at random: logits, tokens, any chunking."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.messages import Ending, RequestId
from gpu_worker.llama import Llama
from tests.gpu_worker.driving import Driver, logits_by_chunk, make_request
from tests.gpu_worker.tiny import FAMILIES, VOCAB, load, make_engine, make_reference

PROMPT = torch.randint(0, VOCAB, (100,), generator=torch.Generator().manual_seed(3)).tolist()


@dataclass(frozen=True)
class Pair:
    reference: PreTrainedModel
    model: Llama

    def logits(self, tokens: list[int]) -> Tensor:
        """[len(tokens), V] as transformers has them."""
        with torch.no_grad():
            logits: Tensor = self.reference(torch.tensor([tokens])).logits[0]
        return logits


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path: Path = tmp_path_factory.mktemp("model")
    reference = make_reference(request.param)
    reference.save_pretrained(path, max_shard_size="100KB")
    assert len(list(path.glob("*.safetensors"))) > 1  # sharded, as large models are
    return Pair(reference, load(path))


@pytest.mark.parametrize("size", [7, 100])
def test_logits_at_the_end_of_each_chunk(pair: Pair, size: int) -> None:
    truth = pair.logits(PROMPT)
    assert truth.std() > 0.5  # or nothing is compared
    for stop, logits in logits_by_chunk(make_engine(pair.model), PROMPT, size):
        torch.testing.assert_close(logits, truth[stop - 1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("max_step_tokens", [5, 64])
def test_greedy_tokens_of_a_batch(pair: Pair, max_step_tokens: int) -> None:
    driver = Driver(make_engine(pair.model), max_step_tokens=max_step_tokens, max_running=4)
    prompts = {f"r.{start}": PROMPT[start : 7 * start + 2] for start in range(1, 8)}
    answers = driver.run(
        [make_request(name, prompt, Ending(max_tokens=16)) for name, prompt in prompts.items()]
    )
    for name, prompt in prompts.items():
        answer = answers[RequestId(name)]
        truth = pair.logits(prompt + answer).argmax(-1).tolist()
        assert answer == truth[len(prompt) - 1 : -1]
