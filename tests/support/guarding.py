"""What guards the Admin API of an application in a test."""

from gateway.api.guard import TokenGuard
from gateway.receive.address import Addresses
from gateway.receive.limits import Strangers
from gateway.receive.metrics import Metrics
from gateway.settings import Settings


def a_guard() -> TokenGuard:
    """As `serve` has it."""
    strangers = Strangers(Addresses(None), Settings().refused_rate)
    return TokenGuard(strangers, Metrics().admin_refused)
