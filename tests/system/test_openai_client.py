"""The `openai` package, unchanged, against a started system."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.system.started import Started

MODEL = "SmolLM2-135M-Instruct"
CHAT = [{"role": "user", "content": "Count from one to five."}]


@pytest.fixture(scope="module")
def client(system: Started) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "chairlift"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=12, temperature=0
    )
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    wanted = {"model": MODEL, "messages": CHAT, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**wanted)
    stream = client.chat.completions.create(
        **wanted, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == (
        whole.choices[0].finish_reason
    )
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert usages == [whole.usage]


def test_a_key_asks_once(client: openai.OpenAI) -> None:
    wanted = {"model": MODEL, "messages": CHAT, "max_tokens": 12}
    key = {"Idempotency-Key": "of the openai client"}
    first = client.chat.completions.create(**wanted, extra_headers=key)
    assert client.chat.completions.create(**wanted, extra_headers=key) == first
    assert client.chat.completions.create(**wanted) != first
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**wanted, temperature=0, extra_headers=key)
    assert caught.value.code == "idempotency_key_reused"


def test_completions_of_several_prompts_and_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["One two three", "Red green"], n=2, max_tokens=4, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    again = client.completions.create(
        model=MODEL, prompt=["One two three", "Red green"], n=2, max_tokens=4, seed=7
    )
    assert [c.text for c in answer.choices] == [c.text for c in again.choices]


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    wanted = {"model": MODEL, "prompt": "1, 2, 3, 4,", "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**wanted).choices[0].text
    stop = whole[5:8]
    cut = client.completions.create(**wanted, stop=[stop])
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_token_ids_are_prompts_too(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[100, 200, 300], max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3


async def test_async_and_leaving_early(system: Started) -> None:
    async with openai.AsyncOpenAI(base_url=f"{system.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            max_tokens=2000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in stream:
            await stream.close()
            break
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=5)
                for _ in range(6)
            )
        )
        assert all(answer.choices[0].message.content for answer in answers)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, openai.BadRequestError),
    ],
    ids=["model", "temperature", "max_tokens", "no messages", "tools", "too long"],
)
def test_errors_are_the_clients_own_classes(
    client: openai.OpenAI, wrong: dict[str, object], error: type[openai.APIStatusError]
) -> None:
    wanted: dict[str, object] = {"model": MODEL, "messages": CHAT, "max_tokens": 5}
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{**wanted, **wrong})  # type: ignore[call-overload]
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["message"]
    assert body["type"]
