"""Resources that a worker opens once for all its handlers: `@resource` and `ctx.resources`."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import structlog

from gateway.base.errors import CommandFailed
from gateway.config.registry import Resource
from gateway.ledger.connection import describe

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
