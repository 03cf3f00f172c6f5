"""For handler authors: the fixtures of the pytest plugin as types, and what they return."""

from gateway.testing.database import Database
from gateway.testing.deliver import CrashAfter, Deliver, Delivered, DeliverTwice, DeliveryFailed
from gateway.testing.events import MakeEvent
from gateway.testing.outgoing import Call, Outgoing
from gateway.testing.resources import Resources

__all__ = [
    "Call",
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
