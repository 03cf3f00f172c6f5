"""New secrets while requests come in: on SIGHUP, all of them or none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import structlog

from gateway.errors import ConfigInvalid, GatewayError, StorageUnavailable
from gateway.hangup import Hangup
from gateway.ledger.connection import TROUBLE, Connection, close_quietly, connect, describe
from gateway.ledger.reloads import DONE, REFUSED, forget_reload, keep_reload
from gateway.metrics.serve import Metrics
from gateway.project import Project, database_url, load_secrets
from gateway.receive.keyring import Bunch, Keyring, tell_expired
from gateway.routes import find_changes, load_config

TELL_S: Final = 2.0
"""A stop must not wait for a ledger that is away."""
LONGEST_ERROR: Final = 2000

log = structlog.get_logger("gateway.serve")


class Reloader:
    """Reads the routes' secrets anew when it is asked to.

    Variables are those of the start; what the routes refer to as a file may have changed, and so
    may their lists of secrets. Whatever else was changed there needs a restart.
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
        """Once it is at it, one more time after that: what it has read may be old by then."""
        self._asked.set()

    @asynccontextmanager
    async def obeying(self, hangup: Hangup) -> AsyncIterator[None]:
        """While requests are taken."""
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
        await self._tell_ledger(forget_reload)  # of one that had our number, and was killed
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.reload()

    async def reload(self) -> None:
        """A broken file leaves the old secrets in force, and is told."""
        outcome, error = DONE, None
        try:
            project, bunches = await asyncio.to_thread(self._read)
        except ConfigInvalid as invalid:
            outcome, error = REFUSED, "; ".join(map(str, invalid.problems))
        except Exception as unforeseen:  # whatever was written there must not end the listening
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

    def _read(self) -> tuple[Project, dict[str, Bunch]]:
        """In a thread: it changes nothing."""
        project = self._project
        config = load_config(project.config.file)
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

    def _take(self, project: Project, bunches: Mapping[str, Bunch]) -> None:
        """In one go, so that no request finds some old and some new ones."""
        for name, bunch in bunches.items():
            self._keyrings[name].hold(bunch)
        self._project = project
        self._on_done(project)
        routes = {r.name: [str(s) for s in r.secrets] for r in project.config.routes if r.secrets}
        log.info("secrets_reloaded", secrets=routes)
        tell_expired(project.config.routes, datetime.now(UTC))

    async def _tell_ledger(self, tell: Callable[[Connection], Awaitable[None]]) -> None:
        """For those who look. Whether it can be told or not, what was read counts."""
        try:
            async with asyncio.timeout(TELL_S):
                connection = await connect(self._url, name="gateway reload")
                try:
                    await tell(connection)
                finally:
                    await close_quietly(connection)
        except (StorageUnavailable, *TROUBLE) as error:
            log.warning("reload_not_noted", error=describe(error))
