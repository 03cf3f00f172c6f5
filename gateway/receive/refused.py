"""Remembers delivery ids that were refused as REPLAYED, after the answer and never in its way."""

import asyncio
from typing import Final

import structlog

from gateway.errors import StorageUnavailable
from gateway.ledger.connection import TROUBLE, close_quietly, connect, describe
from gateway.ledger.refusals import Refusal, note_refusals
from gateway.receive.throttle import Throttle

PER_SECOND: Final = 20
"""Whoever replays a captured request a thousand times a second is not to be served with writes."""

PAUSE_S: Final = 1.0

log = structlog.get_logger("gateway.receive")


class Refused:
    """Writes down what it is told, a second's worth at a time.

    What is lost with the process is no harm: reconcile asks for it once, and it is refused again.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: list[Refusal] = []
        self._throttle = Throttle(PER_SECOND)
        self._task: asyncio.Task[None] | None = None

    def note(self, refusal: Refusal) -> None:
        """Takes one to write down, unless there have been enough of them this second."""
        if not self._throttle.allow():
            return
        self._waiting.append(refusal)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="refused")

    async def stop(self) -> None:
        """Writes down what waits, if that is soon done."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=2 * PAUSE_S)
            self._task.cancel()

    async def _write(self) -> None:
        while self._waiting:
            await asyncio.sleep(PAUSE_S)
            waiting, self._waiting = self._waiting, []
            await self._write_down(waiting)

    async def _write_down(self, waiting: list[Refusal]) -> None:
        """On a connection that is opened for it: this is rare."""
        connection = None
        try:
            connection = await connect(self._url, name="gateway refusals")
            await note_refusals(connection, waiting)
        except (StorageUnavailable, *TROUBLE) as error:
            log.warning("refusals_not_noted", error=describe(error))
        finally:
            await close_quietly(connection)
