"""The HTTP responses."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from starlette.types import Scope, Send

from gateway.base.errors import NotFromHere, RequestRejected, TooMany
from gateway.providers.provider import Acknowledgement, Greeting

RETRY_AFTER_S: Final = 10
UNREAD: Final = frozenset({408, 413, 415, 501})
"""Status codes of rejections that are sent before the whole body has been read."""
LONGEST_DETAIL: Final = 300


Header = tuple[bytes, bytes]

JSON: Final[Header] = (b"content-type", b"application/json")
CLOSE: Final[Header] = (b"connection", b"close")


class Answer(NamedTuple):
    """A response: a status and a small document."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON,)
    close: bool = False
    """Whether to close the connection, because the body may not have been read completely."""
    is_unauthenticated: bool = False
    """Whether the sender is unauthenticated although the request is answered: an open handshake."""

    async def send(self, scope: Scope, send: Send) -> None:
        headers = [*self.headers, (b"content-length", b"%d" % len(self.body))]
        if self.close and scope["http_version"] < "2":  # later versions have no such header
            headers.append(CLOSE)
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Taken(NamedTuple):
    """The outcome of one event: accepted, duplicate or ignored; in a batch also rejected."""

    status: str
    event_id: str | None


def received(told: Sequence[Taken], wanted: Acknowledgement) -> Answer:
    """Return the response to a verified request.

    It lists the outcome of each event, unless the provider requires another acknowledgement.
    """
    if wanted.body is not None:
        return Answer(wanted.status, wanted.body, (_TEXT,) if wanted.body else ())
    if len(told) == 1:
        document: object = told[0]._asdict()
    else:
        document = {"status": "accepted", "events": [one._asdict() for one in told]}
    return Answer(wanted.status, orjson.dumps(document))


def greeted(greeting: Greeting, *, is_unauthenticated: bool = False) -> Answer:
    """Return the response to a handshake.

    It echoes untrusted data, so browsers must not render it as a page.
    """
    # Sent even without a body: Discord rejects a URL whose response to a PING has no Content-Type.
    headers = ((b"content-type", greeting.content_type.encode()), _NO_PAGE)
    return Answer(greeting.status, greeting.body, headers, is_unauthenticated=is_unauthenticated)


def rejected(rejection: RequestRejected, status: int | None = None) -> Answer:
    """Return the response to a rejected request: its error code, nothing that helps a forger."""
    close = rejection.status in UNREAD or isinstance(rejection, NotFromHere)
    return _error(status or rejection.status, rejection.code, *_when_again(rejection), close=close)


def explained(status: int, code: str, detail: str, *, close: bool = False) -> Answer:
    """Return an error response with details, for a sender that has presented a valid token."""
    told = {"error": code, "detail": detail[:LONGEST_DETAIL]}
    return Answer(status, orjson.dumps(told), close=close)


def published(job: Taken) -> Answer:
    """Return the response for a job that is durable, whether it is new or a duplicate."""
    document = {"id": job.event_id, "status": job.status}
    return Answer(201 if job.status == "accepted" else 200, orjson.dumps(document))


def shown(document: Mapping[str, Any]) -> Answer:
    return Answer(200, orjson.dumps(document, option=orjson.OPT_UTC_Z))


def _error(status: int, code: str, *headers: Header, close: bool = False) -> Answer:
    return Answer(status, orjson.dumps({"error": code}), (JSON, *headers), close)


def _when_again(rejection: RequestRejected) -> tuple[Header, ...]:
    if isinstance(rejection, TooMany):
        return ((b"retry-after", b"%d" % math.ceil(rejection.wait_s)),)
    return ()


_TEXT: Final = (b"content-type", b"text/plain")
_NO_PAGE: Final = (b"x-content-type-options", b"nosniff")
_RETRY_AFTER: Final = (b"retry-after", b"%d" % RETRY_AFTER_S)
UNAVAILABLE: Final = _error(503, "UNAVAILABLE", _RETRY_AFTER)
TOO_MANY_REJECTED: Final = _error(429, "TOO_MANY_REFUSED", _RETRY_AFTER, close=True)
OVERLOADED: Final = _error(503, "UNAVAILABLE", _RETRY_AFTER, close=True)
NOT_FOUND: Final = _error(404, "NOT_FOUND")
HIDDEN: Final = _error(404, "NOT_FOUND", close=True)
METHOD_NOT_ALLOWED: Final = _error(405, "METHOD_NOT_ALLOWED", (b"allow", b"POST"), close=True)
READ_ONLY: Final = _error(405, "METHOD_NOT_ALLOWED", (b"allow", b"GET, HEAD"), close=True)
UNAUTHORIZED: Final = _error(401, "UNAUTHORIZED", (b"www-authenticate", b"Bearer"), close=True)
