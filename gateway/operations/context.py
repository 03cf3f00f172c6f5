"""The context of operations in a process that has access to the ledger."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import asyncpg
import structlog

from gateway.base.errors import ConfigInvalid
from gateway.base.names import NO_NAMES, Names
from gateway.config.project import Project, load_keys, load_project
from gateway.config.routes import Config, load_config
from gateway.config.settings import Settings
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.encryption import EncryptionKeys, vault_of
from gateway.ledger.names import load_names
from gateway.operations.inspect import UNREADABLE, find_redaction, redact_event

log = structlog.get_logger("gateway.api")


class BackgroundTasks:
    """Work that continues after the response to its request."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.lock = asyncio.Lock()
        """Background work shares one connection. The other connections are for requests."""

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel all background work. It can be resumed later."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_work_failed", work=task.get_name(), error=str(error))


@dataclass(frozen=True, kw_only=True)
class OperationContext:
    """The dependencies of operations."""

    settings: Settings
    ledger: Executor
    actor: str
    """The name for the audit log."""
    wake: Callable[[Sequence[int]], Awaitable[None]]
    """Wake workers for deliveries that are due."""
    background: BackgroundTasks | None = None
    """Runs long operations. None if the caller runs them itself."""
    loaded: Project | None = field(default=None)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection | Pooled]:
        """Acquire one connection, for work in a transaction."""
        if isinstance(self.ledger, asyncpg.Pool):
            async with self.ledger.acquire() as connection:
                yield connection
        else:
            yield self.ledger

    async def read_names(self) -> Names:
        """Return the renamed routes and handlers in the ledger. They are read only once."""
        if "names" not in self.__dict__:
            self.__dict__["names"] = await load_names(self.ledger)
        return self.names

    @cached_property
    def names(self) -> Names:
        """The names if they have been read, or else none."""
        return NO_NAMES

    @cached_property
    def project(self) -> Project:
        """The routes and handlers, loaded on first use. Raises ConfigInvalid."""
        return (self.loaded or load_project(self.settings)).identified(self.names)

    @cached_property
    def config(self) -> Config:
        """The routes without their handlers. Raises ConfigInvalid."""
        config = self.loaded.config if self.loaded else load_config(self.settings.config)
        return config.identified(self.names)

    def shown(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event with redaction applied."""
        try:
            redaction = find_redaction(self.config, event["route"])
        except ConfigInvalid:
            return redact_event(event, UNREADABLE)
        return redact_event(event, redaction)

    @cached_property
    def encryption(self) -> EncryptionKeys:
        """The keys of encrypted routes, loaded on first use. Raises ConfigInvalid."""
        ring = self.loaded.ring if self.loaded else load_keys(self.settings, self.config)
        return vault_of(self.config, ring)
