"""What a client is told when its request cannot be answered, in the shape of OpenAI's API."""

import orjson


class ApiError(Exception):
    """An answer that is not a success: an HTTP status and the fields of OpenAI's error object.

    ApiError
      + BadRequestError    the client's fault, found in the body: 400, or 404 for the model
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str = "server_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind  # `type` in the body
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}` as JSON."""
        fields = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return orjson.dumps({"error": fields})


class BadRequestError(ApiError):
    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(
            message, status=status, kind="invalid_request_error", param=param, code=code
        )
