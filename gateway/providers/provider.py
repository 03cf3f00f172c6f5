"""What a provider is: how to verify a request, what to read from it, and what its sender does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from gateway.model import Envelope, ReplayPolicy

Headers = Mapping[str, str]
"""Header names in lower case, values decoded as latin-1, so that any byte has a place."""


class Verify(Protocol):
    """Refuses a forged or stale request; returns the index of the secret that matched."""

    def __call__(
        self,
        headers: Headers,
        body: bytes,
        *,
        secrets: Sequence[bytes],
        now: datetime,
        tolerance: timedelta | None,
    ) -> int: ...


class Read(Protocol):
    """Reads id, type, account and time from a verified request; refuses one that has none."""

    def __call__(self, headers: Headers, body: bytes) -> Envelope: ...


class Sign(Protocol):
    """The headers with which the provider itself would send this body."""

    def __call__(
        self, body: bytes, *, secret: bytes, id: str, type: str, now: datetime
    ) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One kind of sender, as data."""

    name: str
    verify: Verify
    read: Read
    sign: Sign
    redelivery: timedelta
    """How long after the first delivery the sender can deliver the same event again."""
    retries: bool
    """Whether the sender comes back by itself after a 503."""
    max_body: int
    tolerance: timedelta | None
    """The default for signed timestamps; None where the sender signs no time."""
    honest_repeats: frozenset[str] | None = None
    """Where no time is signed: event types whose bytes can honestly repeat.

    None: no replay guard.
    """
    is_queue: bool = False
    """Whether there is no sender: its events are jobs, which handlers and programs publish."""

    def replay_policy(self, type: str, route_policy: ReplayPolicy) -> ReplayPolicy | None:
        """What becomes of these bytes if they come back under a fresh delivery id."""
        if self.honest_repeats is None:
            return None
        if type.partition(".")[0] in self.honest_repeats:
            return ReplayPolicy.FLAG
        return route_policy
