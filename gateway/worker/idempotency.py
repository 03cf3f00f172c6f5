"""Idempotency keys: equal in all runs of one operation, and different for every other."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class EffectScope:
    """The scope of a call of `ctx.once(..., per=...)`.

    Idempotency keys in it must not depend on the event whose delivery makes the call.
    """

    name: str
    key: str
    writes: Counter[str] = field(default_factory=Counter)
    """How often `ctx.stripe` has sent each write in this scope."""


_INSIDE: Final[ContextVar[EffectScope | None]] = ContextVar("gateway_effect_scope", default=None)


def current_scope() -> EffectScope | None:
    """Return the scope of the effect that calls the running code, if the effect has a `per` key."""
    return _INSIDE.get()


@contextmanager
def keys_of_effect(name: str, key: str | None) -> Iterator[None]:
    """Derive the idempotency keys inside from this key instead of the event, unless it is None."""
    token = _INSIDE.set(None if key is None else EffectScope(name, key))
    try:
        yield
    finally:
        _INSIDE.reset(token)


def make_key(route: str, event_id: str, handler: str, name: str) -> str:
    """Return the idempotency key of a name for one delivery."""
    return _digest(route, event_id, handler, name)


def make_scoped_key(
    route: str, event_id: str, handler: str, name: str, key: str | None = None
) -> str:
    """Return the idempotency key of a name, in the widest scope that applies.

    With a key, it is equal for all events with that key. Without one, the key of the surrounding
    `ctx.once(..., per=...)` applies, or else the idempotency key belongs to one delivery.
    """
    scope = current_scope()
    if key is None and scope is not None:
        key = scope.key
    if key is None:
        return make_key(route, event_id, handler, name)
    return _digest(route, handler, name, key, "per")


def make_stripe_key(route: str, event_id: str, handler: str, write: str) -> str:
    """Return the idempotency key of a write of `ctx.stripe`.

    It includes the name of the surrounding effect, because two effects with the same `per` key may
    send the same write.
    """
    scope = current_scope()
    name = write if scope is None else f"{scope.name}:{write}"
    return make_scoped_key(route, event_id, handler, name)


def _digest(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass"))
    return f"gw_{digest.hexdigest()[:40]}"
