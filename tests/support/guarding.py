"""What guards the Admin API of an application in a test."""

from gateway.config.settings import Settings
from gateway.http.client_address import Addresses
from gateway.http.limits import Limiters
from gateway.receive.guard import TokenGuard
from gateway.receive.metrics import Metrics


def a_guard() -> TokenGuard:
    """As `serve` has it."""
    limiters = Limiters(Addresses(None), Settings().refused_rate)
    return TokenGuard(limiters, Metrics().admin_refused)
