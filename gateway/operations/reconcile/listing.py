"""The paged listing of a provider's events."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.ledger.reconciliations import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    """An event of the listing that the route accepts."""

    missing: Missing
    """The gap to record if the ledger does not have the event."""
    body: bytes | None = None
    """The event itself, if the listing contains it."""
    problem: str | None = None
    """Why the event cannot be claimed, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPage:
    """A page of the listing, with each event once."""

    count: int
    """Number of entries in the page, including those that the route does not accept."""
    events: Sequence[ListedEvent]
    cursor: str | None
    """Start of the next page."""


class Listing(Protocol):
    """The events that a provider sent within a time span."""

    def pages(self, cursor: str | None) -> AsyncIterator[ProviderPage]:
        """List from the beginning or from a cursor. Raises ProviderFailed."""
