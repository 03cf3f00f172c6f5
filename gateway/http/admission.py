"""Limits for a serve process: requests in flight, bytes of their bodies, and connections."""

import time
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import structlog

from gateway.base.errors import Overloaded

TELL_EVERY_S: Final = 1.0

Member = TypeVar("Member", bound=Hashable)

log = structlog.get_logger("gateway.receive")


class Admission:
    """Limits of the requests and body bytes that one `serve` process holds at once.

    Half of both is reserved for senders that never retry: for them a 503 is a lost event, while a
    sender that retries only delivers later. So under overload the senders that retry are shed
    first. Senders that never retry may use everything.

    Waiting pipelined requests count too, and are evicted for any request that can be processed now.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_bytes: int,
        reserves: bool,
        pipelining: "ConnectionLimit[Any]",
    ) -> None:
        """Initialize the limits.

        `reserves` is False if no route has a sender that never retries. `pipelining` holds the
        connections on which a request waits.
        """
        self._max: Final = (max_requests, max_bytes)
        self._max_retrying: Final = unreserved(max_requests, max_bytes, reserves=reserves)
        self._pipelining = pipelining
        self._entered = self._body_bytes = 0
        self._retrying_requests = self._retrying_bytes = 0
        """The part of the totals that belongs to senders that retry."""

    @property
    def requests(self) -> int:
        return self._entered + len(self._pipelining)

    @property
    def bytes(self) -> int:
        return self._body_bytes + self._pipelining.bytes

    def enter(self, *, retries: bool = True) -> "AdmissionSlot":
        """Return a slot for one request. Raises Overloaded."""
        while self.requests >= self._max[0]:
            if not self._pipelining.evict():
                raise Overloaded(f"{self.requests} requests in flight")
        if retries and self._retrying_requests >= self._max_retrying[0]:
            raise Overloaded(f"{self._retrying_requests} requests of senders that retry in flight")
        return AdmissionSlot(self, retries)

    def hold(self, size: int, *, held: int, retries: bool) -> None:
        """Add body bytes to a request that already holds `held` bytes. Raises Overloaded."""
        while self.bytes + size > self._max[1]:
            if not self._pipelining.evict():
                raise Overloaded(f"{self.bytes} body bytes in flight")
        # A body larger than the unreserved half is admitted if no other sender that retries
        # holds body bytes.
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
        """Count a connection on which a pipelined request waits.

        Past the limits, evict the connections that have been idle for longest.
        """
        self._pipelining.hold(connection, size)
        while self.requests > self._max[0] or self.bytes > self._max[1]:
            if not self._pipelining.evict():
                break


def unreserved(max_requests: int, max_bytes: int, *, reserves: bool) -> tuple[int, int]:
    """Return how many requests and body bytes senders that retry may use at once."""
    if not reserves:
        return max_requests, max_bytes
    return max_requests - max_requests // 2, max_bytes - max_bytes // 2


class AdmissionSlot:
    """The slot of one request, released when the request is over."""

    __slots__ = ("_admission", "_bytes", "_retries")

    def __init__(self, admission: Admission, retries: bool) -> None:
        self._admission = admission
        self._retries = retries
        self._bytes = 0

    def hold(self, size: int) -> None:
        """Add body bytes of this request. Raises Overloaded."""
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


class ConnectionLimit(Generic[Member]):
    """A bounded set of connections that evicts the one that was idle for longest.

    So connections that do nothing, or bodies that never end, cannot keep other clients out.
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
        """Add a member or update its size.

        An update does not change its position in the eviction order.
        """
        self.bytes += size - self._sizes.get(member, 0)
        self._sizes[member] = size
        while self._is_over:
            self.evict()

    def evict(self) -> bool:
        """Evict the member that has been idle for longest. Return whether there was one."""
        stillest = next(iter(self._sizes), None)
        if stillest is None:
            return False
        self.leave(stillest)
        self._send_away(stillest)
        self._tell()
        return True

    def move(self, member: Member) -> None:
        """Move the member to the end of the eviction order, since it was just active."""
        if member in self._sizes:
            self._sizes[member] = self._sizes.pop(member)

    def leave(self, member: Member) -> None:
        """Remove the member. A no-op if it is not in the set."""
        self.bytes -= self._sizes.pop(member, 0)

    @property
    def _is_over(self) -> bool:
        """Whether a limit is exceeded.

        A single member may exceed the byte limit: `Admission` bounds it.
        """
        count = len(self._sizes)
        return count > self._max_members or (count > 1 and self.bytes > self._max_bytes)

    def _tell(self) -> None:
        self._sent_away += 1
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            log.warning("sent_away", kind=self._name, connections=self._sent_away)
            self._told_at, self._sent_away = time.monotonic(), 0
