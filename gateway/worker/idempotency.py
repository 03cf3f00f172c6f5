"""Idempotency: keys that are equal in all runs of one operation, and the `once_per` of handlers."""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from gateway.base.errors import LeaseLost, Reject
from gateway.base.model import Lease
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.connection import QUERIES, Pool
from gateway.ledger.encryption import EncryptionKeys


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


RunOwn = Callable[..., Awaitable[asyncpg.Record | None]]


class AlreadyDone(Exception):
    """Another delivery with the same key was done before."""


class KeyInUse(Exception):
    """Another delivery with the same key is running, and its outcome is not known yet."""


class OncePer:
    """The `once_per` key of one delivery."""

    def __init__(
        self, lease: Lease, path: KeyPath, ledger: Pool, encryption: EncryptionKeys
    ) -> None:
        self._lease = lease
        self._path = path
        self._ledger = ledger
        self._encryption = encryption
        self._key: str | None = None
        """The key is read before the run, because the handler may change the payload."""

    async def reserve(self) -> None:
        """Reserve the key before a run.

        Raises AlreadyDone, KeyInUse, LeaseLost, or Reject if the payload has no value for the key.
        """
        payload = self._lease.event.payload
        self._key = self._path.key(payload)
        if self._key is None:
            missing = self._path.missing(payload)
            raise Reject(f'once_per="{self._path}": the payload has no value at {missing}')
        row = await self._ledger.fetchrow(QUERIES["reserve_once"], *self._arguments)
        if row is None or not row["is_held"]:
            raise LeaseLost(f"delivery {self._lease.delivery_id} belongs to another run now")
        if row["is_ours"]:
            return
        if row["is_done"]:
            by = f"event {row['event_id']}"
            raise AlreadyDone(f"{self._path} {self._key} was done before, by {by}")
        raise KeyInUse(f"another event of {self._path} {self._key} runs")

    async def keep(self, run: RunOwn) -> None:
        """Record the key as done, in the transaction of the run.

        Raises LeaseLost if another delivery has taken over the key.
        """
        if await run(QUERIES["keep_once"], *self._arguments) is None:
            raise LeaseLost(f"another delivery acts for {self._path} {self._key} now")

    @property
    def _arguments(self) -> tuple[object, ...]:
        lease, key = self._lease, self._key or ""
        route, handler = lease.event.route, lease.handler
        kept = self._encryption.turn_key(route, handler, key)
        former = None if kept == key else key  # the key before the route was encrypted
        return route, handler, kept, lease.delivery_id, lease.token, former
