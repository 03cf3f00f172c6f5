"""The requests of `ctx.http` and `ctx.stripe`: recorded, answered plausibly, never sent."""

from typing import Final

import httpx

from gateway.testing.rehearse.answers import READS, Answers
from gateway.testing.rehearse.trace import current_run

REPEATABLE: Final = frozenset({"PUT", "DELETE"})
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2"""


class Wire(httpx.AsyncBaseTransport):
    """Where the requests of rehearsed runs end."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        text = f"{request.method} {_shown(request.url)}"
        run = current_run()
        if run is None:
            raise httpx.ConnectError(f"{text}: no run of a handler is under way")
        run.call(
            text,
            body.decode("utf-8", "replace"),
            is_write=request.method not in READS,
            is_repeatable=request.method in REPEATABLE,
            key=request.headers.get("idempotency-key"),
        )
        return httpx.Response(200, json=self._answers.answer(request, run.payload))


def _shown(url: httpx.URL) -> str:
    """Without what may be a credential."""
    return str(url.copy_with(userinfo=b"", query=None)) + ("?..." if url.query else "")
