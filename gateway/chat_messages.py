"""The `messages` of a chat request, checked and brought to what chat templates know; pure."""

from typing import Any

from gateway.body import Body, wrong_type
from gateway.errors import BadRequestError

Message = dict[str, str]  # role, content, and name, tool_call_id or reasoning_content if given

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
OFF_MESSAGE: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "refusal": (),
    "annotations": ([],),
}


def parse_messages(value: Any) -> tuple[Message, ...]:
    if value is None:
        raise BadRequestError(
            "Missing required parameter: 'messages'.", "messages", "missing_required_parameter"
        )
    if not isinstance(value, list):
        raise wrong_type("messages", "an array of objects", value)
    if not value:
        raise BadRequestError(
            "Invalid 'messages': empty array. Expected at least one message.",
            "messages",
            "empty_array",
        )
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(value: Any, at: str) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    body = Body(value, f"{at}.")
    role = body.string("role")
    if role not in ROLES:
        shown = "nothing" if role is None else repr(role[:32])
        raise BadRequestError(
            f"Invalid value: {shown}. Supported values of '{at}.role' are {', '.join(ROLES)}.",
            f"{at}.role",
            "invalid_value",
        )
    body.refuse(OFF_MESSAGE)
    message = {"role": role, "content": _content(body.take("content"), role, f"{at}.content")}
    for key, max_length in (("name", 64), ("tool_call_id", 256), ("reasoning_content", 1 << 62)):
        text = body.string(key, max_length=max_length)
        if text is not None:
            message[key] = text
    body.close()
    return message


def _content(value: Any, role: str, at: str) -> str:
    """The text of a message; text parts are joined as they stand."""
    if isinstance(value, str):
        return value
    if value is None:
        if role == "assistant":
            return ""
        raise BadRequestError(f"Missing required parameter: '{at}'.", at, "missing_parameter")
    if not isinstance(value, list):
        raise wrong_type(at, "a string or an array of content parts", value)
    if not value:
        raise BadRequestError(f"Invalid '{at}': empty array.", at, "empty_array")
    return "".join(_text_part(part, f"{at}[{index}]") for index, part in enumerate(value))


def _text_part(value: Any, at: str) -> str:
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    body = Body(value, f"{at}.")
    kind = body.string("type")
    if kind != "text":
        shown = "nothing" if kind is None else repr(kind[:32])
        raise BadRequestError(
            f"Invalid value: {shown}. This model takes content parts of type 'text' only.",
            f"{at}.type",
            "invalid_value",
        )
    text = body.string("text", max_length=1 << 62)
    body.close()
    if text is None:
        raise BadRequestError(
            f"Missing required parameter: '{at}.text'.", f"{at}.text", "missing_parameter"
        )
    return text
