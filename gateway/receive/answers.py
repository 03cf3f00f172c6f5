"""The HTTP responses, serialized to bytes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from gateway.base.errors import NotFromHere, RequestRejected, TooMany
from gateway.http.protocol import Reply
from gateway.providers.provider import Acknowledgement, Greeting

RETRY_AFTER_S: Final = 10
UNREAD: Final = frozenset({408, 413, 415, 501})
"""Status codes of rejections that are sent before the whole body has been read."""
LONGEST_DETAIL: Final = 300


JSON: Final = b"content-type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: a status and a small JSON document."""

    status: int
    body: bytes
    lines: bytes = b""
    """Header lines in addition to those of every response."""
    close: bool = False
    """Whether to close the connection, because the body may not have been read completely."""
    kind: bytes = JSON
    is_to_stranger: bool = False
    """Whether the sender is unauthenticated although the request is answered: an open handshake."""

    def send(self, reply: Reply) -> None:
        reply(self.status, self.kind + self.lines, self.body, self.close)


class Taken(NamedTuple):
    """The outcome of one event: accepted, duplicate or ignored; in a batch also rejected."""

    status: str
    event_id: str | None


def received(told: Sequence[Taken], wanted: Acknowledgement) -> Answer:
    """Return the response to a verified request.

    It lists the outcome of each event, unless the provider requires another acknowledgement.
    """
    if wanted.body is not None:
        return Answer(wanted.status, wanted.body, kind=_TEXT if wanted.body else b"")
    if len(told) == 1:
        document: object = told[0]._asdict()
    else:
        document = {"status": "accepted", "events": [one._asdict() for one in told]}
    return Answer(wanted.status, orjson.dumps(document))


def greeted(greeting: Greeting, *, is_to_stranger: bool = False) -> Answer:
    """Return the response to a handshake.

    It echoes untrusted data, so browsers must not render it as a page.
    """
    # Sent even without a body: Discord rejects a URL whose response to a PING has no Content-Type.
    kind = b"content-type: %b\r\n" % greeting.content_type.encode()
    return Answer(
        greeting.status, greeting.body, _NO_PAGE, kind=kind, is_to_stranger=is_to_stranger
    )


def refused(rejection: RequestRejected, status: int | None = None) -> Answer:
    """Return the response to a rejected request: its error code, nothing that helps a forger."""
    close = rejection.status in UNREAD or isinstance(rejection, NotFromHere)
    return _error(status or rejection.status, rejection.code, _when_again(rejection), close)


def explained(
    status: int, code: str, detail: str, *, lines: bytes = b"", close: bool = False
) -> Answer:
    """Return an error response with details, for a sender that has presented a valid token."""
    told = {"error": code, "detail": detail[:LONGEST_DETAIL]}
    return Answer(status, orjson.dumps(told), lines, close)


def published(id: str, verdict: str) -> Answer:
    """Return the response for a job that is durable, whether it is new or a duplicate."""
    is_new = verdict == "accepted"
    return Answer(201 if is_new else 200, orjson.dumps({"id": id, "status": verdict}))


def shown(document: Mapping[str, Any]) -> Answer:
    return Answer(200, orjson.dumps(document, option=orjson.OPT_UTC_Z))


def _error(status: int, code: str, lines: bytes = b"", close: bool = False) -> Answer:
    return Answer(status, orjson.dumps({"error": code}), lines, close)


def _when_again(rejection: RequestRejected) -> bytes:
    if isinstance(rejection, TooMany):
        return b"retry-after: %d\r\n" % math.ceil(rejection.wait_s)
    return b""


_TEXT: Final = b"content-type: text/plain\r\n"
_NO_PAGE: Final = b"x-content-type-options: nosniff\r\n"
_RETRY_AFTER: Final = b"retry-after: %d\r\n" % RETRY_AFTER_S
UNAVAILABLE: Final = _error(503, "UNAVAILABLE", _RETRY_AFTER)
NOT_LOOKED_AT: Final = _error(429, "TOO_MANY_REFUSED", _RETRY_AFTER, close=True)
OVERLOADED: Final = _error(503, "UNAVAILABLE", _RETRY_AFTER, close=True)
NOT_FOUND: Final = _error(404, "NOT_FOUND")
HIDDEN: Final = _error(404, "NOT_FOUND", close=True)
METHOD_NOT_ALLOWED: Final = _error(405, "METHOD_NOT_ALLOWED", b"allow: POST\r\n", close=True)
READ_ONLY: Final = _error(405, "METHOD_NOT_ALLOWED", b"allow: GET, HEAD\r\n", close=True)
UNAUTHORIZED: Final = _error(401, "UNAUTHORIZED", b"www-authenticate: Bearer\r\n", close=True)
