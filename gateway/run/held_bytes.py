"""The bytes of the bodies that a worker holds, and how many more it may lease."""

from typing import Final
from uuid import UUID

from gateway.ledger.deliveries import ByteRoom
from gateway.model import Lease

SMALL_BYTES: Final = 64 * 1024
"""A body up to this size never waits for bytes: slots bound how many of them there are."""

SMALL_SHARE: Final = 4
"""Small bodies together take at most this part of the limit, however many slots there are."""


class HeldBytes:
    """Counts the large bodies of deliveries that run or were leased ahead.

    The next large body may be leased while less than the limit is held, whatever its size. So a
    worker holds at most the limit plus one body, a body larger than the limit still runs, and the
    oldest large body is next as soon as there is room: smaller ones cannot overtake it for ever.
    """

    def __init__(self, limit: int, *, slots: int) -> None:
        self._limit = limit
        # As many deliveries as there are slots may run, and as many again be leased ahead.
        self._small = min(SMALL_BYTES, limit // (SMALL_SHARE * 2 * slots))
        self._held: dict[UUID, int] = {}

    @property
    def room(self) -> ByteRoom:
        """The byte limits of the next lease statement."""
        return ByteRoom(large=self._limit - sum(self._held.values()), small=self._small)

    @property
    def is_full(self) -> bool:
        """Whether no large body may be leased now."""
        return self.room.large <= 0

    def add(self, lease: Lease) -> bool:
        """Count a delivery that was leased; return whether that has used up the room."""
        was_full = self.is_full
        if lease.body_bytes > self._small:
            self._held[lease.token] = lease.body_bytes
        return self.is_full and not was_full

    def remove(self, lease: Lease) -> bool:
        """Forget a delivery whose body is freed; return whether there is room again."""
        was_full = self.is_full
        self._held.pop(lease.token, None)
        return was_full and not self.is_full
