"""A client whose stream goes on by itself, however often connections and gateways are lost.

    python docs/examples/resume.py "What is a chairlift?" http://127.0.0.1:8000 [http://other:8000]

It posts under an Idempotency-Key. Whenever the stream breaks off it posts the same once more, at
the next address, and names the last event that it has: the server sends what comes behind that.
"""

import itertools
import json
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

GIVE_UP_SECONDS = 60.0  # without anything new
SILENCE_SECONDS = 30.0  # the server breaks silences every ten
PASSING = {429, 500, 502, 503, 504}  # answers after which the same may be asked again


class Stream:
    """The chunks of one answer, each once and in order."""

    def __init__(self, urls: Sequence[str], body: dict[str, Any], api_key: str = "") -> None:
        """`urls`: gateways of one pool. `body`: of `/v1/chat/completions`."""
        self.num_connections = 0
        self._urls = itertools.cycle(urls)
        self._body = json.dumps(body | {"stream": True}).encode()  # the same bytes each time
        self._headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._last_id = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        news_at = time.monotonic()
        while True:
            try:
                for data in self._connection(next(self._urls)):
                    if data == "[DONE]":
                        return
                    news_at = time.monotonic()
                    yield json.loads(data)
            except httpx.TransportError as error:
                if time.monotonic() - news_at > GIVE_UP_SECONDS:
                    raise
                print(f"\n[{error or type(error).__name__}: going on]", file=sys.stderr)
            time.sleep(0.2)

    def _connection(self, url: str) -> Iterator[str]:
        """The data of each event that comes on one connection."""
        headers = self._headers | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        self.num_connections += 1
        with (
            httpx.Client(timeout=SILENCE_SECONDS) as client,
            client.stream(
                "POST", f"{url}/v1/chat/completions", content=self._body, headers=headers
            ) as response,
        ):
            if response.status_code in PASSING:
                time.sleep(float(response.headers.get("Retry-After", 1)))
                raise httpx.ReadError(f"HTTP {response.status_code}")
            if response.status_code != 200:
                raise RuntimeError(response.read().decode())
            yield from self._events(response.iter_lines())

    def _events(self, lines: Iterator[str]) -> Iterator[str]:
        """An event counts when the empty line behind it has come."""
        fields: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            elif line == "" and "data" in fields:
                self._last_id = fields.get("id", self._last_id)
                data = fields["data"]
                fields = {}
                if data.startswith('{"error"'):
                    self._fail(json.loads(data)["error"])
                yield data
        raise httpx.ReadError("the stream broke off")

    def _fail(self, error: dict[str, Any]) -> None:
        """A gateway that shuts down says so, and the others go on; all else is the answer."""
        if error["code"] == "shutting_down":
            raise httpx.ReadError(error["message"])
        raise RuntimeError(error["message"])


def main() -> None:
    question, *urls = sys.argv[1:]
    model = httpx.get(f"{urls[0]}/v1/models").json()["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 200,
        "temperature": 0,
    }
    for chunk in Stream(urls, body):
        for choice in chunk["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
