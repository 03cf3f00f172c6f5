"""Handlers: which functions take which events of which route, and by what policy."""

from gateway.registry.decorator import HandlerFunction, handler
from gateway.registry.registry import Registry, Subscription, load_registry
from gateway.registry.resource import Resource, resource

__all__ = [
    "HandlerFunction",
    "Registry",
    "Resource",
    "Subscription",
    "handler",
    "load_registry",
    "resource",
]
