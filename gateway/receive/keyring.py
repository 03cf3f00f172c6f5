"""The keys of one route, and which of them are valid at a given time."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import structlog

from gateway.base.secrets import Secret
from gateway.config.routes import Route
from gateway.ledger.reloads import SecretUses, Use
from gateway.providers.provider import Key

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
FAR_AWAY: Final = datetime.max.replace(tzinfo=UTC)
EXPIRED: Final = "every secret of the route has expired"

log = structlog.get_logger("gateway.receive")


class ActiveKey(NamedTuple):
    """One key of a route."""

    key: Key
    name: str
    """The reference of the secret, never the secret itself."""
    use: Use
    expires_at: datetime | None


class ActiveKeys(NamedTuple):
    """The keys that are valid from `since` until `until`."""

    keys: tuple[Key, ...]
    held: tuple[ActiveKey, ...]
    since: datetime
    until: datetime | None
    """None if no key expires, so that no times need to be compared."""


class RouteKeys:
    """A set of keys that were loaded together, and their current ring.

    The ring is cached here, so that a caller that still holds a replaced bunch does not overwrite
    the ring of its successor.
    """

    def __init__(self, held: Sequence[ActiveKey], now: datetime) -> None:
        self.held = tuple(held)
        self.ring = self.turn(now)

    def turn(self, now: datetime) -> ActiveKeys:
        ends = [one.expires_at for one in self.held if one.expires_at is not None]
        valid = [one for one in self.held if one.expires_at is None or one.expires_at > now]
        return ActiveKeys(
            tuple(one.key for one in valid),
            tuple(valid),
            max((end for end in ends if end <= now), default=LONG_AGO),
            min((end for end in ends if end > now), default=FAR_AWAY) if ends else None,
        )


class Keyring:
    """The keys with which a route verifies its senders."""

    def __init__(self, route: Route, secrets: Sequence[Secret], uses: SecretUses) -> None:
        self._route = route
        self._uses = uses
        self._bunch = self.cut(secrets)

    def cut(self, secrets: Sequence[Secret]) -> RouteKeys:
        """Make keys from secrets. They take effect when they are passed to `hold`."""
        read_key, name = self._route.provider.read_key, self._route.name
        held = [
            ActiveKey(read_key(s.reveal()), str(s.ref), self._uses.of(name, str(s.ref)), _end(s))
            for s in secrets
        ]
        return RouteKeys(held, datetime.now(UTC))

    def hold(self, bunch: RouteKeys) -> None:
        """Replace the keys for all further requests."""
        self._bunch = bunch

    def at(self, now: datetime) -> ActiveKeys:
        """Return the keys that are valid at `now`. On the hot path of every request."""
        bunch = self._bunch
        ring = bunch.ring
        if ring.until is None or ring.since <= now < ring.until:
            return ring
        turned = bunch.turn(now)
        if turned.since > ring.since:  # otherwise the caller asked for a time in the past
            bunch.ring = turned
            self._tell(ring, turned)
        return turned

    def _tell(self, before: ActiveKeys, after: ActiveKeys) -> None:
        for one in before.held:
            if one not in after.held:
                log.warning("secret_expired", route=self._route.name, secret=one.name)
        if not after.keys:
            log.error("no_secret_left", route=self._route.name, reason=EXPIRED)


def tell_expired(routes: Iterable[Route], now: datetime) -> None:
    """Log expired secrets once at the start, because their dates may have been forgotten."""
    for route in routes:
        expired = [ref for ref in route.secrets if ref.has_expired(now)]
        for ref in expired:
            log.warning("secret_expired", route=route.name, secret=str(ref))
        if expired and len(expired) == len(route.secrets):
            log.error("no_secret_left", route=route.name, reason=EXPIRED)


def _end(secret: Secret) -> datetime | None:
    return None if secret.ref is None else secret.ref.expires_at
