"""GET of a stream: what a request was answered, and goes on being answered. Raw ASGI."""

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from common.messages import SubmissionId
from gateway.answer_route import AnswerRoute, name, tenant_of
from gateway.chunks import stream_id
from gateway.positions import HEADER
from gateway.streams import unknown

MAX_ID = 64  # characters: ours are shorter


class Resume(AnswerRoute):
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        wanted: str = scope["path_params"]["stream"]
        submission = SubmissionId(wanted.partition("-")[2])
        if not submission.isalnum() or len(wanted) > MAX_ID:
            raise unknown()
        name(scope, submission)
        stored = await self.service.streams.find(submission, tenant_of(scope))
        if wanted != stream_id(submission, chat=stored.head.chat):
            raise unknown()
        last_event = Headers(scope=scope).get(HEADER, "").strip()
        return await self.show_again(stored, last_event, receive, send)
