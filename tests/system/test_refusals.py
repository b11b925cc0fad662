"""What a started system refuses: strangers, and more than its line may hold."""

from pathlib import Path

import openai
import pytest

from common.api_keys import make_key
from tests.system.started import start

WANTED = {"model": "SmolLM2-135M-Instruct", "prompt": "Once upon a time"}


def test_strangers_and_a_full_line(tmp_path: Path) -> None:
    key, line = make_key("alice")
    keys = tmp_path / "keys"
    keys.write_text(f"{line}\n")
    flags = ("--backend=simulated", f"--api-keys={keys}", "--max-queue=1")
    system = start(tmp_path, *flags)
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key=key, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as stranger:
            client.with_options(api_key="none").models.list()
        assert stranger.value.code == "invalid_api_key"
        # Choices of one request are no further requests.
        with client.completions.create(**WANTED, n=3, max_tokens=4000, stream=True) as stream:
            next(stream)
            with pytest.raises(openai.RateLimitError) as full:
                client.completions.create(**WANTED, max_tokens=1)
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 2
    assert system.stop() == 0
