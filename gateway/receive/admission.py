"""How much a serve process holds at once: requests, bytes of their bodies, and connections."""

import time
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import structlog

from gateway.errors import Overloaded

TELL_EVERY_S: Final = 1.0

Member = TypeVar("Member", bound=Hashable)

log = structlog.get_logger("gateway.receive")


class Admission:
    """Limits of the requests and body bytes that one `serve` process holds at once.

    Half of both is reserved for senders that never retry: for them a 503 is a lost event, while a
    sender that retries only comes later. So under overload the senders that retry are shed first.
    Senders that never retry may use everything.

    Requests that wait in a pipeline count, too, and give way to every request that has its turn.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_bytes: int,
        reserves: bool,
        pipelining: "Crowd[Any]",
    ) -> None:
        """`reserves` is False if no route has a sender that never retries. `pipelining` holds the
        connections on which a request waits."""
        self._max: Final = (max_requests, max_bytes)
        self._max_retrying: Final = unreserved(max_requests, max_bytes, reserves=reserves)
        self._pipelining = pipelining
        self._entered = self._body_bytes = 0
        self._retrying_requests = self._retrying_bytes = 0
        """The part of them that belongs to senders that retry."""

    @property
    def requests(self) -> int:
        return self._entered + len(self._pipelining)

    @property
    def bytes(self) -> int:
        return self._body_bytes + self._pipelining.bytes

    def enter(self, *, retries: bool = True) -> "Place":
        """Return a place for one request, or raise Overloaded."""
        while self.requests >= self._max[0]:
            if not self._pipelining.evict():
                raise Overloaded(f"{self.requests} requests in flight")
        if retries and self._retrying_requests >= self._max_retrying[0]:
            raise Overloaded(f"{self._retrying_requests} requests of senders that retry in flight")
        return Place(self, retries)

    def hold(self, size: int, *, held: int, retries: bool) -> None:
        """Add body bytes of a request that already holds some, or raise Overloaded."""
        while self.bytes + size > self._max[1]:
            if not self._pipelining.evict():
                raise Overloaded(f"{self.bytes} body bytes in flight")
        # A body that is larger than the shared half passes if no other retrying sender has one.
        others = self._retrying_bytes - held
        if retries and others and self._retrying_bytes + size > self._max_retrying[1]:
            raise Overloaded(f"{self._retrying_bytes} body bytes of senders that retry in flight")
        self.count(0, size, retries=retries)

    def count(self, requests: int, size: int, *, retries: bool) -> None:
        """Add requests and body bytes; negative numbers subtract them."""
        self._entered += requests
        self._body_bytes += size
        if retries:
            self._retrying_requests += requests
            self._retrying_bytes += size

    def wait(self, connection: Hashable, size: int) -> None:
        """Count a connection on which a pipelined request waits. Past the limits evict those that
        have waited for longest."""
        self._pipelining.hold(connection, size)
        while self.requests > self._max[0] or self.bytes > self._max[1]:
            if not self._pipelining.evict():
                break


def unreserved(max_requests: int, max_bytes: int, *, reserves: bool) -> tuple[int, int]:
    """Return how many requests and body bytes senders that retry may use at once."""
    if not reserves:
        return max_requests, max_bytes
    return max_requests - max_requests // 2, max_bytes - max_bytes // 2


class Place:
    """The share of one request, given back when it is over."""

    __slots__ = ("_admission", "_bytes", "_retries")

    def __init__(self, admission: Admission, retries: bool) -> None:
        self._admission = admission
        self._retries = retries
        self._bytes = 0

    def hold(self, size: int) -> None:
        """Add body bytes of this request, or raise Overloaded."""
        self._admission.hold(size, held=self._bytes, retries=self._retries)
        self._bytes += size

    def __enter__(self) -> Self:
        self._admission.count(1, 0, retries=self._retries)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admission.count(-1, -self._bytes, retries=self._retries)


class Crowd(Generic[Member]):
    """Connections up to a bound; past it, whoever has been still for longest is sent away.

    So nobody is kept out by connections that do nothing, or by bodies that never end.
    """

    def __init__(
        self,
        name: str,
        *,
        max_members: int,
        max_bytes: int,
        send_away: Callable[[Member], None],
    ) -> None:
        self._name = name
        self._max_members: Final = max_members
        self._max_bytes: Final = max_bytes
        self._send_away = send_away
        self._sizes: dict[Member, int] = {}
        self.bytes = 0
        self._sent_away = 0
        self._told_at = -TELL_EVERY_S

    def __len__(self) -> int:
        return len(self._sizes)

    def hold(self, member: Member, size: int = 0) -> None:
        """Counts it in, or anew what it has brought: that does not change its place."""
        self.bytes += size - self._sizes.get(member, 0)
        self._sizes[member] = size
        while self._is_over:
            self.evict()

    def evict(self) -> bool:
        """Send the one away that has been still for longest. Return whether there was any."""
        stillest = next(iter(self._sizes), None)
        if stillest is None:
            return False
        self.leave(stillest)
        self._send_away(stillest)
        self._tell()
        return True

    def move(self, member: Member) -> None:
        """To the end: it has done something."""
        if member in self._sizes:
            self._sizes[member] = self._sizes.pop(member)

    def leave(self, member: Member) -> None:
        """Counts it out, if it is in."""
        self.bytes -= self._sizes.pop(member, 0)

    @property
    def _is_over(self) -> bool:
        """The bytes of a lone one are the business of `Admission`."""
        count = len(self._sizes)
        return count > self._max_members or (count > 1 and self.bytes > self._max_bytes)

    def _tell(self) -> None:
        self._sent_away += 1
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            log.warning("sent_away", kind=self._name, connections=self._sent_away)
            self._told_at, self._sent_away = time.monotonic(), 0
