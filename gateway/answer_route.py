"""A route whose answer is an exchange: errors in the API's shape, each response counted once."""

import secrets

from starlette.types import Receive, Scope, Send

from common.bus import BusError
from common.messages import SubmissionId
from gateway.admission import refused_by_bus
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.frames import Frames
from gateway.intake import ClientLeftError
from gateway.ledger import QuietLedger
from gateway.positions import read
from gateway.replies import reply_error
from gateway.service import GatewayService
from gateway.streams import Stored


class AnswerRoute:
    """Raw ASGI. Who derives from it says how to `answer`."""

    def __init__(self, service: GatewayService) -> None:
        self.service = service

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        """The status that was sent, or 499 where nobody was there any more.

        Raises ApiError, BusError and ClientLeftError, where nothing was sent yet.
        """
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name(scope, SubmissionId(secrets.token_hex(12)))
        status = 500
        try:
            status = await self.answer(scope, receive, send)
        except ClientLeftError:
            status = 499
        except ApiError as error:
            status = await _reply(scope, send, error)
        except BusError as error:
            status = await _reply(scope, send, refused_by_bus(error))
        finally:
            self.service.metrics.count_response(status)

    async def show_again(
        self, stored: Stored, last_event: str, receive: Receive, send: Send
    ) -> int:
        """Answer with what was accepted before, from where the client is; as `answer`."""
        service, head = self.service, stored.head
        after = read(last_event if head.stream else "", head.num_choices)
        token_bytes = service.model.tokenizer.token_bytes
        frames = Frames(stored.submission, stored.frame, token_bytes, after)
        router = service.router
        async with router.join(stored.submission, stored.journals, in_turn=head.in_turn) as answer:
            exchange = Exchange(router, answer, frames, QuietLedger(stored.submission))
            return await exchange.run(receive, send, service.settings.keep_alive_seconds)


def name(scope: Scope, submission: SubmissionId) -> None:
    """What an error calls the request, if there is one."""
    scope.setdefault("state", {})["submission"] = submission


def tenant_of(scope: Scope) -> str | None:
    """Who asks, by the key; None: whoever it says it is."""
    tenant: str | None = scope.get("state", {}).get("tenant")
    return tenant


async def _reply(scope: Scope, send: Send, error: ApiError) -> int:
    submission: SubmissionId = scope["state"]["submission"]
    await reply_error(send, error, [(b"x-request-id", submission.encode())])
    return error.status
