"""The prompts of a call as token ids: the slow part of a request, for a thread of its own."""

from common.chat_template import ChatTemplate, TemplateError
from common.tokenizer import Tokenizer, TooLongError
from gateway.errors import BadRequestError
from gateway.openai import Call, ChatCall, too_long


def prompts_of(
    call: Call, tokenizer: Tokenizer, template: ChatTemplate, max_request_tokens: int
) -> list[list[int]]:
    """One list for each prompt, each shorter than `max_request_tokens`.

    BadRequestError where one is not, or where the template refuses the messages.
    """
    most = max_request_tokens - 1  # room for one token of an answer
    try:
        if isinstance(call, ChatCall):
            return [template.encode(call.messages, tokenizer, max_tokens=most)]
        return [
            tokenizer.encode(prompt, max_tokens=most) if isinstance(prompt, str) else list(prompt)
            for prompt in call.prompts
        ]
    except TooLongError as error:
        raise too_long(call, error.num_tokens, 1, max_request_tokens) from None
    except TemplateError as error:
        raise BadRequestError(str(error), "messages", error.code) from None
