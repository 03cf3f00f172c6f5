"""The keys of one route: those that count at a moment, and others from one moment to the next."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import structlog

from gateway.ledger.secret_uses import SecretUses, Use
from gateway.providers.provider import Key
from gateway.routes import Route
from gateway.secrets import Secret

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
FAR_AWAY: Final = datetime.max.replace(tzinfo=UTC)
EXPIRED: Final = "every secret of the route has expired"

log = structlog.get_logger("gateway.receive")


class Held(NamedTuple):
    """One key."""

    key: Key
    name: str
    """Its reference, never the secret."""
    use: Use
    expires_at: datetime | None


class Ring(NamedTuple):
    """The keys that count from one moment to another."""

    keys: tuple[Key, ...]
    held: tuple[Held, ...]
    since: datetime
    until: datetime | None
    """None: no key expires, so that there is no time to look at."""


class Bunch:
    """The keys that were read together. Whoever still holds one that was exchanged changes nothing
    of the next: the ring of the moment is kept here."""

    def __init__(self, held: Sequence[Held], now: datetime) -> None:
        self.held = tuple(held)
        self.ring = self.turn(now)

    def turn(self, now: datetime) -> Ring:
        ends = [one.expires_at for one in self.held if one.expires_at is not None]
        valid = [one for one in self.held if one.expires_at is None or one.expires_at > now]
        return Ring(
            tuple(one.key for one in valid),
            tuple(valid),
            max((end for end in ends if end <= now), default=LONG_AGO),
            min((end for end in ends if end > now), default=FAR_AWAY) if ends else None,
        )


class Keyring:
    """By which a route knows its senders."""

    def __init__(self, route: Route, secrets: Sequence[Secret], uses: SecretUses) -> None:
        self._route = route
        self._uses = uses
        self._bunch = self.cut(secrets)

    def cut(self, secrets: Sequence[Secret]) -> Bunch:
        """Makes keys of secrets; `hold` lets them count."""
        read_key, name = self._route.provider.read_key, self._route.name
        held = [
            Held(read_key(s.reveal()), str(s.ref), self._uses.of(name, str(s.ref)), _end(s))
            for s in secrets
        ]
        return Bunch(held, datetime.now(UTC))

    def hold(self, bunch: Bunch) -> None:
        """These, and no others, from the next request on."""
        self._bunch = bunch

    def at(self, now: datetime) -> Ring:
        """The keys that count. On the path of every request."""
        bunch = self._bunch
        ring = bunch.ring
        if ring.until is None or ring.since <= now < ring.until:
            return ring
        turned = bunch.turn(now)
        if turned.since > ring.since:  # else somebody asks what was valid then
            bunch.ring = turned
            self._tell(ring, turned)
        return turned

    def _tell(self, before: Ring, after: Ring) -> None:
        for one in before.held:
            if one not in after.held:
                log.warning("secret_expired", route=self._route.name, secret=one.name)
        if not after.keys:
            log.error("no_secret_left", route=self._route.name, reason=EXPIRED)


def tell_expired(routes: Iterable[Route], now: datetime) -> None:
    """Once at the start, and for all to see: whoever wrote the dates may have forgotten them."""
    for route in routes:
        expired = [ref for ref in route.secrets if ref.has_expired(now)]
        for ref in expired:
            log.warning("secret_expired", route=route.name, secret=str(ref))
        if expired and len(expired) == len(route.secrets):
            log.error("no_secret_left", route=route.name, reason=EXPIRED)


def _end(secret: Secret) -> datetime | None:
    return None if secret.ref is None else secret.ref.expires_at
