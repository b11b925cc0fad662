"""Random requests of all kinds: greedy, drawn, filtered, penalised, biased."""

import random

from common.messages import Ending, Sampling
from scheduler.core.request import Request
from tests.gpu_worker.driving import GREEDY, make_request

SAMPLINGS = (
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "min_p": 0.02, "presence_penalty": 0.5},
    {"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.1},
    {"temperature": 1.0, "logit_bias": ((7, 2.0), (3, -1.0))},
)


def make_requests(
    count: int, vocab: int, *, longest_prompt: int, longest_answer: int, seed: int, greedy: bool
) -> list[Request]:
    """All greedy, or drawn in all ways that there are, one after the other."""
    numbers = random.Random(seed)
    requests = []
    for index in range(count):
        kind = SAMPLINGS[index % len(SAMPLINGS)]
        sampling = GREEDY if greedy else Sampling(seed=numbers.getrandbits(62), **kind)  # type: ignore[arg-type]
        prompt = [numbers.randrange(vocab) for _ in range(numbers.randint(1, longest_prompt))]
        longest = numbers.randint(longest_answer // 2, longest_answer)
        ending = Ending(max(1, longest), end_tokens=() if greedy else (3,))
        requests.append(make_request(f"{seed}-{index}.0", prompt, ending, sampling))
    return requests


def fresh(request: Request) -> Request:
    """The same again, from its beginning."""
    prompt = request.tokens[: request.num_prompt]
    return make_request(request.id, prompt, request.ending, request.sampling)
