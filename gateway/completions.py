"""POST of a completion or a chat completion: from the body to the last frame. Raw ASGI.

Under an Idempotency-Key a request is asked for once, however often it is posted and wherever: its
id is made of tenant and key, and the scheduler drops a second request of the same id. So claiming
the key and accepting the request are one write.
"""

import time

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from common.messages import SubmissionId, Submit
from gateway.admission import num_tokens, refuse
from gateway.answer_route import AnswerRoute, name, tenant_of
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.frames import Frames
from gateway.head import Head
from gateway.intake import Draft, Parse
from gateway.ledger import CountingLedger
from gateway.service import GatewayService
from gateway.streams import Stored, unknown
from gateway.wishes import KEY, Wishes, id_under_key


class Completions(AnswerRoute):
    def __init__(self, service: GatewayService, parse: Parse) -> None:
        super().__init__(service)
        self.parse = parse

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        began_at = time.monotonic()
        wishes = Wishes.of(Headers(scope=scope))
        submit = await self._submit_of(wishes, scope, receive)
        name(scope, submit.submission_id)
        if wishes.key:
            if stored := await self.service.streams.look(submit.submission_id):
                _check_same(submit, stored)
                return await self.show_again(stored, wishes.last_event, receive, send)
            if wishes.last_event:
                raise unknown()  # its frames would not go on where the client's end
        return await self._ask(submit, began_at, receive, send, has_key=bool(wishes.key))

    async def _ask(
        self, submit: Submit, began_at: float, receive: Receive, send: Send, *, has_key: bool
    ) -> int:
        service = self.service
        if refused := refuse(submit, service.monitor.load(), service.queue_limits):
            raise refused
        service.monitor.add(num_tokens(submit))
        in_turn = Head.of(submit.frame).in_turn
        async with service.router.open(submit, in_turn=in_turn, joins=has_key) as answer:
            frame = submit.frame
            if has_key:
                stored = await service.streams.accepted(submit.submission_id)
                _check_same(submit, stored)
                frame = stored.frame
            frames = Frames(submit.submission_id, frame, service.model.tokenizer.token_bytes)
            ledger = CountingLedger(submit, service.metrics, began_at)
            deadline = submit.deadline_seconds
            exchange = Exchange(service.router, answer, frames, ledger, deadline)
            return await exchange.run(receive, send, service.settings.keep_alive_seconds)

    async def _submit_of(self, wishes: Wishes, scope: Scope, receive: Receive) -> Submit:
        service, submission = self.service, scope["state"]["submission"]
        secret = await service.streams.secret() if wishes.key else b""

        def id_of(tenant: str) -> SubmissionId:
            return id_under_key(secret, tenant, wishes.key) if wishes.key else submission

        draft = Draft(
            id_of=id_of,
            tenant=tenant_of(scope),
            max_request_tokens=service.monitor.progress.max_request_tokens(
                service.model.context_length
            ),
            deadline_seconds=service.settings.request_timeout_seconds or None,
            resumable=wishes.resumable,
        )
        return await service.intake.submit_of(self.parse, Headers(scope=scope), receive, draft)


def _check_same(submit: Submit, stored: Stored) -> None:
    if submit.digest != stored.digest:
        message = f"This '{KEY}' was used with another body. Take a new key for a new request."
        raise ApiError(
            message,
            status=422,
            kind="invalid_request_error",
            param=KEY,
            code="idempotency_key_reused",
        )
