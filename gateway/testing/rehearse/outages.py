"""The ways in which a service that a handler calls can fail."""

import asyncio
import smtplib
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import httpx

from gateway.testing.rehearse.trace import Outage, RehearsedRun, current_run

_SAID: Final = "made up by a rehearsal"

HTTP: Final = (
    Outage(words="answered 500", status=500),
    Outage(words="answered 401", status=401),
    Outage(words="answered 422", status=422),
    Outage(words="without a connection", error=lambda: httpx.ConnectError(_SAID)),
    Outage(words="timed out before it was sent", error=lambda: httpx.ConnectTimeout(_SAID)),
    Outage(words="answered 500 after it was done", status=500, is_received=True),
    Outage(
        words="timed out after it was sent",
        error=lambda: httpx.ReadTimeout(_SAID),
        is_received=True,
    ),
    Outage(
        words="broken off after it was sent",
        error=lambda: httpx.RemoteProtocolError(_SAID),
        is_received=True,
    ),
)
MAIL: Final = (
    Outage(words="answered 451", error=lambda: smtplib.SMTPDataError(451, _SAID.encode())),
    Outage(words="without a connection", error=lambda: ConnectionRefusedError(_SAID)),
    Outage(
        words="broken off after it was sent",
        error=lambda: smtplib.SMTPServerDisconnected(_SAID),
        is_received=True,
    ),
)
RESOURCE: Final = (
    Outage(words="without a connection", error=lambda: ConnectionRefusedError(_SAID)),
    Outage(
        words="broken off after it was sent",
        error=lambda: ConnectionResetError(_SAID),
        is_received=True,
    ),
)
"""The responses of a resource that is no HTTP client are unknown, so only its connection fails."""


class FailedResponse(httpx.Response):
    """An error response that records whether the handler reads its status."""

    def __init__(self, status: int, run: RehearsedRun) -> None:
        self._run = run
        error = {"code": f"rehearsed_{status}", "message": _SAID, "type": "api_error"}
        super().__init__(status, json={"error": error})

    @property
    def status_code(self) -> int:
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__") == "httpx._models" and frame.f_back is not None:
            frame = frame.f_back
        if not frame.f_globals.get("__name__", "").startswith("httpx."):
            self._run.has_seen_status = True
        return self._status

    @status_code.setter
    def status_code(self, status: int) -> None:
        self._status = status


class ReturnedResponse(FailedResponse):
    """An error response of a client that may have to be awaited."""

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield


@contextmanager
def quick_sleeps() -> Iterator[None]:
    """Skip the delays between the handler's own retries, in runs whose callee is failing."""
    sleep = asyncio.sleep

    async def quick(delay: float, result: Any = None) -> Any:
        run = current_run()
        is_failing = run is not None and run.failing is not None
        return await sleep(0 if is_failing else delay, result)

    asyncio.sleep = quick
    try:
        yield
    finally:
        asyncio.sleep = sleep
