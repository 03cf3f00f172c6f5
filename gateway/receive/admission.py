"""How much a serve process holds at once: requests, and bytes of their bodies."""

from types import TracebackType
from typing import Final, Self


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
