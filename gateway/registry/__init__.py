"""Handlers: which functions take which events of which route, and by what policy."""

from gateway.registry.decorator import HandlerFunction, handler
from gateway.registry.registry import Registry, Subscription, load_registry

__all__ = ["HandlerFunction", "Registry", "Subscription", "handler", "load_registry"]
