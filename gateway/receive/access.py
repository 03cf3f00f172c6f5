"""Access checks of a route that run before anything of the body is read."""

from datetime import UTC, datetime
from typing import Final

from starlette.types import Scope

from gateway.base.errors import NotFromHere, TokenMissing, TooMany, Unauthorized
from gateway.base.secrets import find_borne
from gateway.config.routes import Route
from gateway.http.client_address import Addresses
from gateway.http.limits import Limiters, TokenBucket
from gateway.providers import Headers
from gateway.providers.provider import Integrity
from gateway.receive.guard import Credential
from gateway.receive.keyring import Keyring

SMALL_BYTES: Final = 64 * 1024


class AccessPolicy:
    """The bearer tokens, the allow list and the rate limits of one route."""

    def __init__(
        self,
        route: Route,
        addresses: Addresses,
        limiters: Limiters,
        tokens: Keyring | None = None,
    ) -> None:
        """Initialize. `tokens` are those of a queue, and ignored for webhooks."""
        provider = route.provider
        if provider.is_queue and tokens is None:
            raise ValueError(f"queue {route.name} without tokens would be open to all")
        # A token can be guessed; wrong signatures are limited only because of what they cost.
        has_token = provider.is_queue or provider.integrity is Integrity.NONE
        self.limiter: Final = limiters.of(("token", route.name) if has_token else "signatures")
        self.handshakes: Final = (
            self.limiter
            if route.verify_token is None
            else limiters.of(("verify_token", route.name))
        )
        """The limiter of requests with another method than POST."""
        self.route: Final = route.name
        self._tokens = tokens if provider.is_queue else None
        self._allow = route.allow
        self._takes_small = not provider.retries and not has_token
        self._allowance = None if route.limit is None else TokenBucket(route.limit)
        self._addresses = addresses

    def is_closed_to(self, scope: Scope) -> bool:
        """Return whether so many requests of this address were rejected that this one is, too.

        A sender that never retries would lose the events that it sends from a shared address. So
        its signed requests are verified all the same, if they are small enough to be cheap.
        """
        if scope["method"] != "POST":
            return self.handshakes.are_over(scope)
        if not self.limiter.are_over(scope):
            return False
        return not (self._takes_small and _announced(scope) <= SMALL_BYTES)

    def address_of(self, scope: Scope) -> str | None:
        client = self._addresses.of(scope)
        return None if client is None else str(client.address)

    def describe_address(self, scope: Scope) -> str:
        """Return the address for logs and messages."""
        return self.address_of(scope) or "no address"

    def check(self, scope: Scope, headers: Headers) -> None:
        """Check the token of a queue, and the allow list. Raises Unauthorized or NotFromHere."""
        if self._tokens is not None:
            self._check_token(self._tokens, headers)
        self.check_address(scope)

    def credential(self) -> Credential:
        """Return the tokens of a queue that are valid now."""
        keys = () if self._tokens is None else self._tokens.at(datetime.now(UTC)).keys
        return Credential(keys, self.limiter)

    def _check_token(self, tokens: Keyring, headers: Headers) -> None:
        now = datetime.now(UTC)
        ring = tokens.at(now)
        borne = find_borne(headers.get("authorization", ""), ring.keys)
        if borne is None:
            raise _unauthorized(headers)
        ring.held[borne].use.note(now)

    def check_address(self, scope: Scope) -> None:
        """Check the allow list. Raises NotFromHere."""
        if self._allow is None:
            return
        client = self._addresses.of(scope)
        if client is None or client.address not in self._allow:
            self._addresses.tell_of_proxy(scope)
            raise NotFromHere(f"from {self.describe_address(scope)}, which is not in `allow`")

    def take(self, events: int = 1) -> None:
        """Count verified events against the rate limit. Raises TooMany.

        Duplicates count as well: recognizing them would cost what the limit is meant to save.
        """
        if self._allowance is None or not events:
            return
        wait_s = self._allowance.take(events)
        if wait_s:
            raise TooMany("more verified events than `limit`", wait_s=wait_s)


def _unauthorized(headers: Headers) -> Unauthorized:
    """Return why a request without a valid bearer token is rejected."""
    if "authorization" in headers:
        return Unauthorized("a wrong bearer token")
    return TokenMissing("no bearer token")


def _announced(scope: Scope) -> int:
    """Return the announced length of the body, or a large number if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < len(str(SMALL_BYTES)) + 1:
            return int(value)
    return SMALL_BYTES + 1
