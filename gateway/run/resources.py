"""What workers open once for all their handlers: `@resource` functions and `ctx.resources`."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import structlog

from gateway.errors import CommandFailed
from gateway.ledger.connection import describe
from gateway.registry import Resource

OPEN_S: Final = 30.0
CLOSE_S: Final = 5.0

log = structlog.get_logger("gateway.run")


class Resources:
    """The opened resources, as attributes."""

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
    """Opened in the order of their definition, closed in the other."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources = tuple(resources)
        self._running: list[tuple[Resource, AsyncIterator[Any]]] = []

    async def open(self) -> dict[str, Any]:
        """All of them by name. Raises CommandFailed where one cannot be opened: none stays open."""
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
        """Lets each run to its end; one that fails or hangs does not keep the others open."""
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
