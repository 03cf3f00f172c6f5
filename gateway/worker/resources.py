"""What the runs of a worker share: connections, clients, callbacks, and opened `@resource`s."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

import httpx
import structlog

from gateway.base.errors import CommandFailed
from gateway.base.secrets import Secret
from gateway.config.registry import Registry, Resource
from gateway.config.routes import Config
from gateway.ledger.connection import Pool, describe
from gateway.ledger.sessions import Sessions
from gateway.worker.codec import LeaseCodec
from gateway.worker.hooks import Hooks

OPEN_S: Final = 30.0
CLOSE_S: Final = 5.0

log = structlog.get_logger("gateway.run")


class Resources:
    """Access to the opened resources as attributes: `ctx.resources`."""

    def __init__(self, opened: Mapping[str, Any]) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        try:
            return self._opened[name]
        except KeyError:
            known = ", ".join(sorted(self._opened)) or "none"
            raise AttributeError(
                f"ctx.resources.{name}: no @resource of that name is defined in the handler "
                f"modules; there is {known}"
            ) from None


class OpenResources:
    """Opens resources in the order of their definition, and closes them in reverse order."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources = tuple(resources)
        self._running: list[tuple[Resource, AsyncIterator[Any]]] = []

    async def open(self) -> dict[str, Any]:
        """Open all resources and return them by name.

        Raises CommandFailed if one cannot be opened. The others are closed again.
        """
        opened: dict[str, Any] = {}
        for resource in self._resources:
            generator = resource.function()
            try:
                async with asyncio.timeout(OPEN_S):
                    opened[resource.name] = await anext(generator)
            except Exception as error:  # the user's own code
                await self.close()
                raise CommandFailed(_not_opened(resource, error)) from error
            self._running.append((resource, generator))
        return opened

    async def close(self) -> None:
        """Run the rest of each resource function.

        A function that fails or hangs does not keep the other resources open.
        """
        while self._running:
            resource, generator = self._running.pop()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await anext(generator, None)
            except Exception as error:  # the user's own code
                log.warning("resource_not_closed", resource=resource.name, error=describe(error))


def _not_opened(resource: Resource, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        why = f"it took longer than {OPEN_S:g} s"
    elif isinstance(error, StopAsyncIteration):
        why = "it ended without a yield"
    else:
        why = f"{type(error).__name__}: {describe(error)}"
    return f"resource {resource.name} ({resource.place}) cannot be opened: {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Connections, clients, statistics and callbacks of a worker."""

    work: Sessions
    """Connections for `ctx.db` only."""
    ledger: Pool
    """Connections for deliveries that are not settled in `ctx.db`, and for `ctx.once`."""
    http: httpx.AsyncClient
    """The client for all requests of handlers, those to Stripe included."""
    patience: timedelta
    """How long to wait for the result of a commit before its connection is closed."""
    config: Config
    registry: Registry
    """The subscriptions, to find the handlers of published jobs."""
    codec: LeaseCodec
    """Decodes events, and encodes errors for storage."""
    api_keys: Mapping[str, Secret] = field(default_factory=dict)
    """API keys for `ctx.stripe`, by the name of the route."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """The values that `@resource` functions have yielded, by name."""
    hooks: Hooks = field(default_factory=Hooks)
    on_repair: Callable[[Literal["fenced", "settle_repeated"]], None] = lambda _: None
    """Called when a fence or a repeated settlement has saved a run from a fault."""
