"""A worker of two ranks, started as a user does: it answers, and survives the death of any rank."""

import json
import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from redis import Redis
from transformers import LlamaConfig, LlamaForCausalLM

from tests.common.tiny_tokenizers import KINDS
from tests.system.started import Started, start

FLAGS = ("--tensor-parallel", "2", "--dtype", "float32", "--threads", "2")


def save_model(folder: Path) -> Path:
    """A small random model that has a tokenizer, and whose vocabulary is odd."""
    kind = KINDS["llama3"]()
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=kind.library.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
    )
    assert config.vocab_size % 2
    LlamaForCausalLM(config).save_pretrained(folder)
    kind.library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(kind.variables))
    return folder


def ranks(system: Started) -> list[psutil.Process]:
    """Of the worker: rank 0, then the others."""
    children = psutil.Process(system.process.pid).children(recursive=True)
    named = [(child, " ".join(child.cmdline()[:3])) for child in children]
    return [child for child, name in named if name.endswith("-m gpu_worker")] + [
        child for child, name in named if name.endswith("-m gpu_worker.follower")
    ]


def device(system: Started) -> str:
    with Redis.from_url((system.data_dir / "redis-url").read_text().strip()) as redis:
        [hello] = redis.hvals("chairlift:{default}:workers")  # type: ignore[misc]
    return str(json.loads(hello)["device"])


def ended(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    return not psutil.wait_procs(processes, seconds)[1]


@pytest.mark.slow  # half a minute where nothing else runs: torch is loaded seven times
def test_a_worker_of_two_ranks(tmp_path: Path) -> None:
    system = start(tmp_path, "--model", str(save_model(tmp_path / "model")), *FLAGS)
    wanted = {"model": "model", "prompt": "hello world", "max_tokens": 120, "ignore_eos": True}
    began = time.monotonic()
    with httpx.Client(base_url=system.url, timeout=60) as client:
        assert device(system) == "cpu (native kernels), 2 ranks"
        whole = client.post("/v1/completions", json={**wanted, "temperature": 0}).json()
        for victim in (1, 0):
            before, text, num_frames = ranks(system), "", 0
            assert len(before) == 2
            with client.stream(
                "POST", "/v1/completions", json={**wanted, "temperature": 0, "stream": True}
            ) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                        num_frames += 1
                        if num_frames == 20:
                            os.kill(before[victim].pid, signal.SIGKILL)
                            assert ended(before), "a rank outlives the other"
            assert num_frames > 20
            assert text == whole["choices"][0]["text"]
    last = ranks(system)
    assert system.stop() == 0
    assert ended(last, 1.0)
    assert time.monotonic() - began < 60
