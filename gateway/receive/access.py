"""Access checks of a route that run before anything of the body is read."""

from typing import Final

from starlette.types import Scope

from gateway.base.errors import NotFromHere, TooMany
from gateway.config.routes import Route
from gateway.http.client_address import Addresses
from gateway.http.limits import Limiters, TokenBucket
from gateway.providers.provider import Integrity

SMALL_BYTES: Final = 64 * 1024


class AccessPolicy:
    """The allow list and the rate limits of one route."""

    def __init__(self, route: Route, addresses: Addresses, limiters: Limiters) -> None:
        provider = route.provider
        # A token can be guessed; wrong signatures are limited only because of what they cost.
        has_token = provider.is_queue or provider.integrity is Integrity.NONE
        self.limiter: Final = limiters.of(("token", route.name) if has_token else "signatures")
        self.handshakes: Final = (
            self.limiter
            if route.verify_token is None
            else limiters.of(("verify_token", route.name))
        )
        """The limiter of requests with another method than POST."""
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

    def address_of(self, scope: Scope) -> str:
        """Return the address as text, for logs and messages."""
        client = self._addresses.of(scope)
        return "no address" if client is None else str(client.address)

    def check_address(self, scope: Scope) -> None:
        """Check the allow list. Raises NotFromHere."""
        if self._allow is None:
            return
        client = self._addresses.of(scope)
        if client is None or client.address not in self._allow:
            self._addresses.tell_of_proxy(scope)
            raise NotFromHere(f"from {self.address_of(scope)}, which is not in `allow`")

    def take(self, events: int = 1) -> None:
        """Count verified events against the rate limit. Raises TooMany.

        Duplicates count as well: recognizing them would cost what the limit is meant to save.
        """
        if self._allowance is None or not events:
            return
        wait_s = self._allowance.take(events)
        if wait_s:
            raise TooMany("more verified events than `limit`", wait_s=wait_s)


def _announced(scope: Scope) -> int:
    """Return the announced length of the body, or a large number if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < len(str(SMALL_BYTES)) + 1:
            return int(value)
    return SMALL_BYTES + 1
