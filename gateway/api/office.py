"""Where operations are carried out: by a process that has the ledger at hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import asyncpg
import structlog

from gateway.errors import ConfigInvalid
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.sealed import Vault, vault_of
from gateway.operate.shown import UNREADABLE, find_redaction, redact_event
from gateway.project import Project, load_keys, load_project
from gateway.routes import Config, load_config
from gateway.settings import Settings

log = structlog.get_logger("gateway.api")


class Background:
    """Work that goes on after its order was answered."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.turn = asyncio.Lock()
        """However much goes on, it takes one connection at a time: the others are for who asks."""

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Ends all of it; what it was at can be gone on with."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_work_failed", work=task.get_name(), error=str(error))


@dataclass(frozen=True, kw_only=True)
class Office:
    """What operations need."""

    settings: Settings
    ledger: Executor
    actor: str
    """Who orders, for the audit log."""
    wake: Callable[[Sequence[int]], Awaitable[None]]
    """Tells workers of deliveries that may run now."""
    background: Background | None = None
    """Who goes on with long work; None where the caller does so himself."""
    loaded: Project | None = field(default=None)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection | Pooled]:
        """One connection, for work in a transaction."""
        if isinstance(self.ledger, asyncpg.Pool):
            async with self.ledger.acquire() as connection:
                yield connection
        else:
            yield self.ledger

    @cached_property
    def project(self) -> Project:
        """Routes and handlers, read when they are needed. Raises ConfigInvalid."""
        return self.loaded or load_project(self.settings)

    @cached_property
    def config(self) -> Config:
        """Routes, without their handlers. Raises ConfigInvalid."""
        return self.loaded.config if self.loaded else load_config(self.settings.config)

    def shown(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event as people may see it."""
        try:
            redaction = find_redaction(self.config, event["route"])
        except ConfigInvalid:
            return redact_event(event, UNREADABLE)
        return redact_event(event, redaction)

    @cached_property
    def vault(self) -> Vault:
        """The keys of encrypted routes, read when they are needed. Raises ConfigInvalid."""
        ring = self.loaded.ring if self.loaded else load_keys(self.settings, self.config)
        return vault_of(self.config, ring)
