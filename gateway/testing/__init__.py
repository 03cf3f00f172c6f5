"""Public types for handler authors: the fixtures of the pytest plugin and their results."""

from gateway.testing.deliver import CrashAfter, Deliver, Delivered, DeliverTwice, DeliveryFailed
from gateway.testing.events import MakeEvent
from gateway.testing.fixtures import ConnectionNotAllowed, Database, Resources
from gateway.testing.outgoing import Call, Outgoing

__all__ = [
    "Call",
    "ConnectionNotAllowed",
    "CrashAfter",
    "Database",
    "Deliver",
    "DeliverTwice",
    "Delivered",
    "DeliveryFailed",
    "MakeEvent",
    "Outgoing",
    "Resources",
]
