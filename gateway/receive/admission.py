"""How much a serve process holds at once: requests, bytes of their bodies, and connections."""

import time
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import structlog

TELL_EVERY_S: Final = 1.0

Member = TypeVar("Member", bound=Hashable)

log = structlog.get_logger("gateway.receive")


class Overloaded(Exception):
    """More at once than this process may hold."""


class Admission:
    """The bounds that all requests of a process share."""

    def __init__(self, *, max_requests: int, max_bytes: int) -> None:
        self._max_requests: Final = max_requests
        self._max_bytes: Final = max_bytes
        self.requests = 0
        self.bytes = 0

    def enter(self) -> "Place":
        """A place for one request, or Overloaded."""
        if self.requests >= self._max_requests:
            raise Overloaded(f"{self.requests} requests in flight")
        return Place(self)

    def hold(self, size: int) -> None:
        """Counts bytes in, or raises Overloaded."""
        if self.bytes + size > self._max_bytes:
            raise Overloaded(f"{self.bytes} body bytes in flight")
        self.bytes += size


class Place:
    """One request's share, given back whatever happens."""

    __slots__ = ("_admission", "_bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0

    def hold(self, size: int) -> None:
        """Counts bytes that this request brings."""
        self._admission.hold(size)
        self._bytes += size

    def __enter__(self) -> Self:
        self._admission.requests += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admission.requests -= 1
        self._admission.bytes -= self._bytes


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
        self._bytes = 0
        self._sent_away = 0
        self._told_at = -TELL_EVERY_S

    def hold(self, member: Member, size: int = 0) -> None:
        """Counts it in, or anew what it has brought: that does not change its place."""
        self._bytes += size - self._sizes.get(member, 0)
        self._sizes[member] = size
        while self._is_over:
            stillest = next(iter(self._sizes))
            self.leave(stillest)
            self._send_away(stillest)
            self._tell()

    def move(self, member: Member) -> None:
        """To the end: it has done something."""
        if member in self._sizes:
            self._sizes[member] = self._sizes.pop(member)

    def leave(self, member: Member) -> None:
        """Counts it out, if it is in."""
        self._bytes -= self._sizes.pop(member, 0)

    @property
    def _is_over(self) -> bool:
        """The bytes of a lone one are the business of `Admission`."""
        count = len(self._sizes)
        return count > self._max_members or (count > 1 and self._bytes > self._max_bytes)

    def _tell(self) -> None:
        self._sent_away += 1
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            log.warning("sent_away", kind=self._name, connections=self._sent_away)
            self._told_at, self._sent_away = time.monotonic(), 0
