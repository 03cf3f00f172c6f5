"""Public types for handler authors: the fixtures of the pytest plugin and their results."""

from gateway.testing.connections import ConnectionNotAllowed
from gateway.testing.database import Database
from gateway.testing.deliver import CrashAfter, Deliver, Delivered, DeliverTwice, DeliveryFailed
from gateway.testing.events import MakeEvent
from gateway.testing.outgoing import Call, Outgoing
from gateway.testing.resources import Resources

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
