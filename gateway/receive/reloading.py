"""Reload secrets on SIGHUP without interrupting requests: all of them, or none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import structlog

from gateway.base.errors import ConfigInvalid, GatewayError, StorageUnavailable
from gateway.base.hangup import Hangup
from gateway.config.project import Project, database_url, load_secrets
from gateway.config.routes import find_changes, load_config
from gateway.ledger.connection import TROUBLE, Connection, close_quietly, connect, describe
from gateway.ledger.reloads import DONE, REFUSED, forget_reload, keep_reload
from gateway.receive.keyring import Keyring, RouteKeys, tell_expired
from gateway.receive.metrics import Metrics

TELL_S: Final = 2.0
"""Timeout for writes to the ledger. Shutdown must not wait for an unavailable ledger."""
LONGEST_ERROR: Final = 2000

log = structlog.get_logger("gateway.serve")


class SecretReloader:
    """Reload the secrets of the routes on request.

    Environment variables keep their values from the start. Files that the routes refer to may have
    changed, and so may the lists of secrets. Any other change in the file needs a restart.
    """

    def __init__(
        self,
        project: Project,
        keyrings: Mapping[str, Keyring],
        *,
        metrics: Metrics,
        on_done: Callable[[Project], None],
    ) -> None:
        self._project = project
        self._keyrings = keyrings
        self._reloads = metrics.reloads
        self._on_done = on_done
        self._url = database_url(project.settings)
        self._asked = asyncio.Event()
        self._was_told = False
        for outcome in (DONE, REFUSED):
            self._reloads.labels(outcome)

    def ask(self) -> None:
        """Request a reload.

        If one is running, another one follows, because it may have read old values.
        """
        self._asked.set()

    @asynccontextmanager
    async def obeying(self, hangup: Hangup) -> AsyncIterator[None]:
        """Reload on SIGHUP while the context is active."""
        task = asyncio.create_task(self._obey_forever(), name="reload")
        try:
            with hangup.obeyed_by(self.ask):
                yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            if self._was_told:
                await self._tell_ledger(forget_reload)

    async def _obey_forever(self) -> None:
        await self._tell_ledger(forget_reload)  # of a killed process with the same id
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.reload()

    async def reload(self) -> None:
        """Reload the secrets.

        If the file is invalid, the old secrets stay in force, and an error is logged.
        """
        outcome, error = DONE, None
        try:
            project, bunches = await asyncio.to_thread(self._read)
        except ConfigInvalid as invalid:
            outcome, error = REFUSED, "; ".join(map(str, invalid.problems))
        except Exception as unforeseen:  # no error in the file may end the reload task
            told = str(unforeseen) if isinstance(unforeseen, GatewayError) else ""
            outcome, error = REFUSED, told or type(unforeseen).__name__
        else:
            self._take(project, bunches)
        self._reloads.labels(outcome).inc()
        if error is not None:
            log.error("reload_refused", reason=error, in_force="the secrets of before")

        async def keep(ledger: Connection) -> None:
            await keep_reload(ledger, outcome, error and error[:LONGEST_ERROR])

        self._was_told = True
        await self._tell_ledger(keep)

    def _read(self) -> tuple[Project, dict[str, RouteKeys]]:
        """Load the new secrets. Runs in a thread and changes no state."""
        project = self._project
        config = load_config(project.config.file).identified(project.names)
        changes = find_changes(project.config.document, config.document)
        if changes:
            raise ConfigInvalid(
                [
                    config.problem(
                        "routes",
                        found=f"changes of {', '.join(changes)}",
                        expected="none but of `secrets` and `tokens`: the rest needs a restart",
                    )
                ]
            )
        secrets = load_secrets(project.settings, config)
        bunches = {name: ring.cut(secrets[name]) for name, ring in self._keyrings.items()}
        return replace(project, config=config, secrets=secrets), bunches

    def _take(self, project: Project, bunches: Mapping[str, RouteKeys]) -> None:
        """Replace all keys in one step, so that no request finds a mix of old and new ones."""
        for name, bunch in bunches.items():
            self._keyrings[name].hold(bunch)
        self._project = project
        self._on_done(project)
        routes = {r.label: [str(s) for s in r.secrets] for r in project.config.routes if r.secrets}
        log.info("secrets_reloaded", secrets=routes)
        tell_expired(project.config.routes, datetime.now(UTC))

    async def _tell_ledger(self, tell: Callable[[Connection], Awaitable[None]]) -> None:
        """Record the reload in the ledger, where status and doctor read it.

        If that fails, the reload still counts.
        """
        try:
            async with asyncio.timeout(TELL_S):
                connection = await connect(self._url, name="gateway reload")
                try:
                    await tell(connection)
                finally:
                    await close_quietly(connection)
        except (StorageUnavailable, *TROUBLE) as error:
            log.warning("reload_not_noted", error=describe(error))
