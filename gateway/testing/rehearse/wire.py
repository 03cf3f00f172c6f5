"""The requests of `ctx.http` and `ctx.stripe`: recorded and answered plausibly, but never sent."""

from collections.abc import Sequence
from typing import Final

import httpx

from gateway.testing.rehearse.answers import Answers, fits
from gateway.testing.rehearse.outages import HTTP, FailedResponse
from gateway.testing.rehearse.trace import current_run
from gateway.testing.stripe_objects import READS

REPEATABLE: Final = frozenset({"PUT", "DELETE"})
"""Methods that are idempotent: https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2"""


class RecordingTransport(httpx.AsyncBaseTransport):
    """HTTP transport of rehearsed runs."""

    def __init__(self, answers: Answers, reads: Sequence[str] = ()) -> None:
        self._answers = answers
        self._reads = reads

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        text = f"{request.method} {_shown(request.url)}"
        run = current_run()
        if run is None:
            raise httpx.ConnectError(f"{text}: no run of a handler is under way")
        outage = run.call(
            text,
            body.decode("utf-8", "replace"),
            is_write=not self._only_reads(request),
            is_repeatable=request.method in REPEATABLE,
            key=request.headers.get("idempotency-key"),
            outages=HTTP,
        )
        if outage is not None and outage.error is not None:
            raise outage.error()
        if outage is not None and outage.status is not None:
            return FailedResponse(outage.status, run)
        given = self._answers.given(request)
        if given is not None:
            return httpx.Response(given.status, json=given.json)
        run.invented.append(text)
        return httpx.Response(200, json=self._answers.answer(request, run.told))

    def _only_reads(self, request: httpx.Request) -> bool:
        return request.method in READS or any(fits(request.url, glob) for glob in self._reads)


def _shown(url: httpx.URL) -> str:
    """Return the URL without the parts that may be a credential."""
    return str(url.copy_with(userinfo=b"", query=None)) + ("?..." if url.query else "")
