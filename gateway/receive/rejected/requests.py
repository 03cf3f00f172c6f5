"""Rejected requests in memory until they are stored, shared fairly between senders."""

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Final, NamedTuple

from starlette.types import Scope

from gateway.providers import Headers
from gateway.receive.reading import path_and_query

LONGEST_PATH: Final = 1000
LONGEST_AGENT: Final = 64


class UnexaminedRequest(NamedTuple):
    """A rejected request with the data at hand. Its cause is examined later, elsewhere."""

    route: str
    """Empty if no route has the path."""
    at: datetime
    code: str
    reason: str
    scope: Scope
    headers: Headers
    body: bytes | None
    """None if the body was not received, or is too large to be kept."""
    body_bytes: int | None
    address: str | None
    shadow: bool = False
    """Whether the request was accepted all the same."""
    verified_by: str | None = None
    """The secret under which it was verified: for an item of an accepted batch, or a duplicate."""

    @property
    def sender(self) -> str:
        """A key for requests that are likely of the same sender.

        It includes the user agent, since all clients share one address behind a proxy that is not
        configured.
        """
        agent = self.headers.get("user-agent", "")[:LONGEST_AGENT]
        return f"{self.address or '-'} {agent}"

    @property
    def method(self) -> str:
        return str(self.scope["method"])[:LONGEST_AGENT]

    @property
    def path(self) -> str:
        """The path with its query, as received."""
        return path_and_query(self.scope)


def measure(headers: Headers, body: bytes | None) -> int | None:
    """Return the size of the body, or its announced size if it was not read."""
    if body is not None:
        return len(body)
    announced = headers.get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) <= 18 else None


PER_SENDER: Final = 8
PER_ROUTE: Final = 16
PER_PROCESS: Final = 64
MOST_BYTES: Final = 8 * 1024 * 1024
"""Limit for all bodies together. Past it, requests are kept without their body."""

Sender = tuple[str, str]


class Waiting:
    """Bounded buffer: per process, per route, and per sender and code.

    A sender is an address with a user agent. If the buffer is full, a sender with many requests
    loses one to a sender with few. Of each sender, the first requests and the last one are kept.
    """

    def __init__(self) -> None:
        self._routes: dict[str, dict[Sender, list[UnexaminedRequest]]] = {}
        self._sizes: dict[str, int] = {}
        self._count = 0
        self._bytes = 0
        self.left_out = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, route: str) -> bool:
        """Return whether one more request would be kept, regardless of its sender."""
        return self._count < PER_PROCESS and self._sizes.get(route, 0) < PER_ROUTE

    def add(self, request: UnexaminedRequest) -> None:
        """Add a request, displacing another one if necessary, or drop it."""
        sender = (request.code, request.sender)
        senders = self._routes.setdefault(request.route, {})
        own = senders.get(sender, [])
        if len(own) == PER_SENDER:
            crowd = own
        elif self._sizes.get(request.route, 0) == PER_ROUTE:
            crowd = max(senders.values(), key=len)
        elif self._count == PER_PROCESS:
            crowd = max(self._crowds(), key=len)
        else:
            self._put(sender, request)
            return
        self.left_out += 1
        if crowd is own or len(crowd) > len(own) + 1:
            self._drop_last(crowd)
            self._put(sender, request)

    def requests(self) -> list[UnexaminedRequest]:
        """Return the requests in the order in which they arrived."""
        held = [request for own in self._crowds() for request in own]
        return sorted(held, key=lambda request: request.at)

    def _crowds(self) -> Iterator[list[UnexaminedRequest]]:
        return chain.from_iterable(senders.values() for senders in self._routes.values())

    def _put(self, sender: Sender, request: UnexaminedRequest) -> None:
        if self._bytes + len(request.body or b"") > MOST_BYTES:
            request = request._replace(body=None)
        self._routes[request.route].setdefault(sender, []).append(request)
        self._sizes[request.route] = self._sizes.get(request.route, 0) + 1
        self._count += 1
        self._bytes += len(request.body or b"")

    def _drop_last(self, crowd: list[UnexaminedRequest]) -> None:
        dropped = crowd.pop()
        self._sizes[dropped.route] -= 1
        self._count -= 1
        self._bytes -= len(dropped.body or b"")
