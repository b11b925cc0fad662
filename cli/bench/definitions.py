"""How each figure is counted, in words: for `--definitions` and for JSON."""

import textwrap

DEFINITIONS = {
    "arrival": "with --rate and --trace when a request is due, also if it then waits for a place "
    "(what the client itself was late is left out, and noted where it is long); else when it gets "
    "its place. A later turn of a conversation arrives when the one before it ends.",
    "TTFT": "time to first token: from the arrival, with connecting and sending, until the bytes "
    "of the first frame that carries a token are read.",
    "ITL": "inter-token latency: between two frames of one answer that carry tokens; a frame may "
    "carry several tokens. All gaps of all answers count alike.",
    "TPOT": "time per output token: (E2E - TTFT) / (tokens - 1) of one answer; none where that "
    "is one.",
    "E2E": "from the arrival until the last bytes of the answer, [DONE] included, are read.",
    "tokens": "of a prompt and of an answer as the server's usage says; without usage, frames.",
    "output tokens/s": "tokens of all answers, by the time of the run.",
    "prompt tokens/s": "tokens of all prompts that were answered, by the time of the run.",
    "requests/s": "requests that did not fail, by the time of the run.",
    "time of the run": "from the first arrival to the last end, failed requests included.",
    "good": "a request that did not fail and met every target that is given: TTFT, TPOT and E2E as "
    "above, and no ITL of its answer longer than --itl-ms.",
    "goodput": "good requests by the time of the run; its share is of all requests, failed ones "
    "included.",
    "failed": "no answer with status 200, an error in the stream, a stream that ends without "
    "[DONE], a broken connection, or --timeout-seconds. What it had until then counts nowhere.",
    "longest gap": "the longest ITL of all.",
    "pN": "percentile by nearest rank: the smallest value that N percent of all do not exceed.",
    "repeats": "the median of a figure over the runs, and in brackets its range.",
    "ratio": "the median of a server by the median of the first.",
}


def definitions() -> str:
    return "\n".join(
        textwrap.fill(text, 100, initial_indent=f"{name:<17}", subsequent_indent=" " * 17)
        for name, text in DEFINITIONS.items()
    )
