"""What guards the Admin API of an application in a test."""

from gateway.metrics.serve import Metrics
from gateway.receive.address import Addresses
from gateway.receive.guard import TokenGuard
from gateway.receive.limits import Limiters
from gateway.settings import Settings


def a_guard() -> TokenGuard:
    """As `serve` has it."""
    limiters = Limiters(Addresses(None), Settings().refused_rate)
    return TokenGuard(limiters, Metrics().admin_refused)
