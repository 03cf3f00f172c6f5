"""The answers of the HTTP table, as bytes."""

from dataclasses import dataclass
from typing import Final

import orjson
from starlette.types import Send

from gateway.errors import RequestRejected

RETRY_AFTER_S: Final = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a small JSON document."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        length = str(len(self.body)).encode()
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", length),
                    *self.headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": self.body})


CLOSE: Final = (b"connection", b"close")
"""Said where the body may not have been read to its end."""


def received(status: str, event_id: str) -> Answer:
    """Verified: accepted, duplicate or ignored."""
    return Answer(200, orjson.dumps({"status": status, "event_id": event_id}))


def refused(rejection: RequestRejected) -> Answer:
    """The sender is wrong. Says the code and nothing that would help a forger."""
    closing = (CLOSE,) if rejection.status in {408, 413} else ()
    return Answer(rejection.status, orjson.dumps({"error": rejection.code}), closing)


def _error(status: int, code: str, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(status, orjson.dumps({"error": code}), headers)


_RETRY_AFTER: Final = (b"retry-after", str(RETRY_AFTER_S).encode())
UNAVAILABLE: Final = _error(503, "UNAVAILABLE", _RETRY_AFTER)
OVERLOADED: Final = _error(503, "UNAVAILABLE", _RETRY_AFTER, CLOSE)
NOT_FOUND: Final = _error(404, "NOT_FOUND")
METHOD_NOT_ALLOWED: Final = _error(405, "METHOD_NOT_ALLOWED", (b"allow", b"POST"), CLOSE)
