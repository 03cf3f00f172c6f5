"""Handlers: the subscriptions of functions to events of a route, and their policies."""

from gateway.config.registry.decorator import HandlerFunction, Resource, handler, resource
from gateway.config.registry.registry import Registry, Subscription, load_registry

__all__ = [
    "HandlerFunction",
    "Registry",
    "Resource",
    "Subscription",
    "handler",
    "load_registry",
    "resource",
]
