"""Refused requests that wait to be written down: a handful, shared out fairly."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from gateway.receive.turned_away import TurnedAway

PER_SENDER: Final = 8
PER_ROUTE: Final = 16
PER_PROCESS: Final = 64
MOST_BYTES: Final = 8 * 1024 * 1024
"""Of all bodies together; what is more waits without its body."""

Sender = tuple[str, str]


class Waiting:
    """So many at the most: of a process, of each route, and of each sender and code.

    A sender is an address with a user agent. Who has sent many gives way to who has sent few; of
    what one has sent, the first are held, and the last.
    """

    def __init__(self) -> None:
        self._routes: dict[str, dict[Sender, list[TurnedAway]]] = {}
        self._sizes: dict[str, int] = {}
        self._count = 0
        self._bytes = 0
        self.left_out = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, route: str) -> bool:
        """Whether one more is held, whoever sent it."""
        return self._count < PER_PROCESS and self._sizes.get(route, 0) < PER_ROUTE

    def add(self, request: TurnedAway) -> None:
        """Holds it, in the place of another if need be, or leaves it out."""
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

    def requests(self) -> list[TurnedAway]:
        """In the order in which they came."""
        held = [request for own in self._crowds() for request in own]
        return sorted(held, key=lambda request: request.at)

    def _crowds(self) -> Iterator[list[TurnedAway]]:
        return chain.from_iterable(senders.values() for senders in self._routes.values())

    def _put(self, sender: Sender, request: TurnedAway) -> None:
        if self._bytes + len(request.body or b"") > MOST_BYTES:
            request = request._replace(body=None)
        self._routes[request.route].setdefault(sender, []).append(request)
        self._sizes[request.route] = self._sizes.get(request.route, 0) + 1
        self._count += 1
        self._bytes += len(request.body or b"")

    def _drop_last(self, crowd: list[TurnedAway]) -> None:
        dropped = crowd.pop()
        self._sizes[dropped.route] -= 1
        self._count -= 1
        self._bytes -= len(dropped.body or b"")
