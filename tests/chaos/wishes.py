"""What clients ask for, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import replace

from common.chat_template import ChatTemplate
from common.model_files import ModelFiles
from common.tokenizer import Tokenizer
from tests.chaos.answer import Truth, Wish

VOCABULARY = range(1000, 9000)  # ordinary words
STOP_CHARS = (2, 8)  # of a stop string

Draw = Callable[[random.Random, str], Wish]  # with a key for the wish, should it have one


class Wishes:
    def __init__(self, files: ModelFiles) -> None:
        self.model = files.name
        self._tokenizer = Tokenizer.load(files)
        self._template = ChatTemplate.load(files)

    def truth(self, wish: Wish) -> Truth:
        return Truth(wish, self._tokenizer.token_bytes)

    def any(self, rng: random.Random, key: str) -> Wish:
        """Of all kinds: some leave, some are cancelled, three in ten cannot come back."""
        is_long = rng.random() < 0.4
        has_key = rng.random() < 0.7
        wish = replace(
            self._asked(rng, is_chat=rng.random() < 0.3),
            max_tokens=rng.randint(100, 400) if is_long else rng.randint(1, 40),
            n=rng.choice((1, 1, 1, 1, 2, 3)),
            has_usage=rng.random() < 0.3,
            key=key if has_key else "",
            streams=rng.random() < 0.8,
        )
        if rng.random() < 0.2:
            wish = replace(wish, stop=self._stop(rng, wish))
        if wish.streams and rng.random() < 0.1:
            return replace(wish, leaves_after=rng.randint(1, 60))
        if wish.streams and rng.random() < 0.06:
            return replace(wish, cancels_after=rng.randint(1, 60))
        return replace(wish, num_posts=2) if wish.key and rng.random() < 0.15 else wish

    def steady(self, rng: random.Random, key: str) -> Wish:
        """Streams of like length that come back when they are cut off: half of them are chats."""
        asked = self._asked(rng, is_chat=rng.random() < 0.5)
        return replace(asked, max_tokens=rng.randint(25, 60), has_usage=True, key=key)

    def _asked(self, rng: random.Random, *, is_chat: bool) -> Wish:
        """Its prompt; for one token."""
        tokens = tuple(rng.choices(VOCABULARY, k=rng.randint(1, 200)))
        if not is_chat:
            return Wish(tokens, max_tokens=1)
        content = " ".join(str(token) for token in tokens[:40])
        messages = [{"role": "user", "content": content}]
        prompt = self._template.encode(messages, self._tokenizer)
        return Wish(tuple(prompt), max_tokens=1, content=content)

    def _stop(self, rng: random.Random, wish: Wish) -> str:
        """Some of the text that will come, or what may come or not."""
        text = self.truth(wish).text
        begin = rng.randrange(len(text)) if text else 0
        return text[begin : begin + rng.randint(*STOP_CHARS)] or "e"
