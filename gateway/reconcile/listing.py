"""What a provider's listing says, page by page."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.ledger.gaps import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One event of the listing that the route wants."""

    missing: Missing
    """What is to be noted of it if the ledger has not seen it."""
    body: bytes | None = None
    """The event itself, where the listing has it."""
    problem: str | None = None
    """Why it could not become an event of ours, if so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A piece of the listing, with each event once."""

    count: int
    """How many entries it had, wanted or not."""
    events: Sequence[Listed]
    cursor: str | None
    """Where the next page begins."""


class Listing(Protocol):
    """What a provider sent in a time."""

    def pages(self, cursor: str | None) -> AsyncIterator[Page]:
        """From the beginning, or from a cursor on. Raises ProviderFailed."""
