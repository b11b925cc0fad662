"""POST of a completion or a chat completion: from the body to the last frame. Raw ASGI."""

import secrets
import time

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from common.bus import BusError
from common.messages import SubmissionId, Submit
from gateway.admission import num_tokens, refuse, refused_by_bus
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.intake import ClientLeftError, Draft, Parse
from gateway.ledger import Ledger
from gateway.replies import reply_error
from gateway.service import GatewayService


class Completions:
    def __init__(self, service: GatewayService, parse: Parse) -> None:
        self.service = service
        self.parse = parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        submission = SubmissionId(secrets.token_hex(12))
        status = 500
        try:
            status = await self._answer(submission, scope, receive, send)
        except ClientLeftError:
            status = 499
        except ApiError as error:
            status = error.status
            await reply_error(send, error, [(b"x-request-id", submission.encode())])
        finally:
            self.service.metrics.count_response(status)

    async def _answer(
        self, submission: SubmissionId, scope: Scope, receive: Receive, send: Send
    ) -> int:
        """The status that was sent, or 499 where nobody was there any more. Raises ApiError."""
        service, began_at = self.service, time.monotonic()
        submit = await self._submit_of(submission, scope, receive)
        if refused := refuse(submit, service.monitor.load(), service.queue_limits):
            raise refused
        service.monitor.add(num_tokens(submit))
        try:
            async with service.router.open(submit) as answer:
                ledger = Ledger(submit, service.metrics, began_at)
                token_bytes = service.model.tokenizer.token_bytes
                exchange = Exchange(service.router, answer, token_bytes, ledger)
                return await exchange.run(receive, send, service.settings.keep_alive_seconds)
        except BusError as error:
            raise refused_by_bus(error) from error

    async def _submit_of(self, submission: SubmissionId, scope: Scope, receive: Receive) -> Submit:
        service = self.service
        draft = Draft(
            submission_id=submission,
            tenant=scope.get("state", {}).get("tenant"),
            max_request_tokens=service.monitor.progress.max_request_tokens(
                service.model.context_length
            ),
            deadline_seconds=service.settings.request_timeout_seconds or None,
        )
        return await service.intake.submit_of(self.parse, Headers(scope=scope), receive, draft)
