"""A real Postgres behind a target: what it refuses is a finding."""

import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import asyncpg
import structlog

from gateway.ledger.claims import Claim, Claimer
from tests.fuzz.target import Finding, Stage, Watch, looping

AT_MOST: Final = 500
"""Rows, then the table is emptied."""

Run = Callable[[Coroutine[Any, Any, None]], None]


class Storage:
    """Claims one by one, and looks whether what was claimed is there."""

    def __init__(self, claimer: Claimer, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._claimer, self._connection = claimer, connection
        self._rows = 0

    async def keep(self, claim: Claim) -> None:
        """Raises StorageUnavailable where Postgres refuses it."""
        await self._claimer.claim(claim)
        row = await self._connection.fetchrow(
            "select type, body from gateway.events where route = $1 and event_id = $2",
            *claim.key,
        )
        if row is None:
            raise Finding("claimed, and not there")
        self._rows += 1
        if self._rows >= AT_MOST:
            self._rows = 0
            await self._connection.execute(
                "truncate gateway.processed_events, gateway.deliveries cascade"
            )


@contextmanager
def watched() -> Iterator[Run]:
    """Runs work in a loop; raises what it raises, and a Finding for what was logged as an error."""
    watch = Watch()
    logging.getLogger().addHandler(watch)
    structlog.configure(
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        processors=[structlog.stdlib.render_to_log_kwargs],
    )
    with looping() as loop:

        def run(work: Coroutine[Any, Any, None]) -> None:
            loop.run(work)
            watch.check()

        try:
            yield run
        finally:
            logging.getLogger().removeHandler(watch)
            structlog.reset_defaults()


@contextmanager
def storing(stage: Stage) -> Iterator[tuple[Storage, Run]]:
    """A storage that is ready, and what runs work in its loop."""
    with watched() as run:
        claimer = Claimer(stage.database_url, on_accepted=lambda _: None)
        made: list[Storage] = []

        async def start() -> None:
            await claimer.start()
            made.append(Storage(claimer, await asyncpg.connect(stage.database_url)))

        run(start())
        yield made[0], run
        run(_stop(claimer, made[0]))


async def _stop(claimer: Claimer, storage: Storage) -> None:
    await claimer.stop()
    await storage._connection.close()
