"""What Schemathesis is told beside the document: which streams exist, and which fields go together.

It runs in an environment of its own, hence nothing of the project is imported.
"""

import os
from typing import Any

import schemathesis

STREAMS = os.environ.get("CHAIRLIFT_STREAMS", "").split(",")


@schemathesis.hook
def map_path_parameters(_context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Every other stream that is asked for exists."""
    if parameters and "stream" in parameters and len(str(parameters["stream"])) % 2:
        parameters["stream"] = STREAMS[len(str(parameters["stream"])) // 2 % len(STREAMS)]
    return parameters


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    """Most bodies ask for what one request may ask for at once, so that they are answered."""
    if not isinstance(body, dict) or len(body) % 4 == 3:
        return body
    for name in ("max_completion_tokens", "best_of", "min_tokens"):
        body.pop(name, None)
    if isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = min(body["max_tokens"], 20)
    if body.get("stream") is not True:
        body.pop("stream_options", None)
    return body
