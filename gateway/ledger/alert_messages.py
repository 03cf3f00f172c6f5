"""Messages of alerts on their way: at most one per alert and destination."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import orjson

from gateway.ledger.alerts import Key, Kind
from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES

SENDING: Final = timedelta(minutes=1)
"""For so long a message is with whoever took it: longer than a sending may take."""

FIRST_WAIT: Final = timedelta(seconds=10)
LONGEST_WAIT: Final = timedelta(hours=1)
MOST_ATTEMPTS: Final = 10
"""Of a message that something is over."""
BATCH: Final = 10


Destination = Literal["webhook", "slack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message on its way to one destination."""

    kind: Kind
    route: str
    handler: str
    destination: Destination
    id: str
    message: str
    """JSON, the same at every attempt."""
    attempts: int

    @property
    def place(self) -> tuple[str, str, str, str]:
        return self.kind, self.route, self.handler, self.destination


async def put_message(
    ledger: Executor,
    key: Key,
    destinations: Sequence[Destination],
    *,
    id: str,
    message: dict[str, Any],
    at: datetime,
) -> None:
    """A message for each destination, in place of what had not got there."""
    text = orjson.dumps(message, option=orjson.OPT_UTC_Z).decode()
    await ledger.execute(QUERIES["put_message"], *key, list(destinations), id, text, at)


async def take_messages(
    ledger: Executor, destinations: Sequence[Destination], now: datetime | None
) -> list[Letter]:
    """Messages that are to be sent now, and that nobody else will send meanwhile."""
    rows = await ledger.fetch(QUERIES["take_messages"], list(destinations), now, BATCH, SENDING)
    return [Letter(**(dict(row) | {"kind": Kind(row["kind"])})) for row in rows]


async def forget_destinations(ledger: Executor, but: Sequence[Destination]) -> None:
    """Messages to all others: nobody will send them any more."""
    await ledger.execute(QUERIES["forget_destinations"], list(but))


async def note_sent(ledger: Executor, letter: Letter, now: datetime | None) -> None:
    """It got there."""
    await ledger.execute(QUERIES["note_sent"], *letter.place, letter.id, now)


async def note_unsent(
    ledger: Executor,
    letter: Letter,
    now: datetime | None,
    *,
    error: str,
    retry_after: timedelta | None,
) -> bool:
    """It did not. Returns whether it will be tried again."""
    wait = min(FIRST_WAIT * 2 ** min(letter.attempts - 1, MOST_ATTEMPTS), LONGEST_WAIT)
    if retry_after is not None:
        wait = min(max(retry_after, wait), LONGEST_WAIT)
    status: str | None = await ledger.fetchval(
        QUERIES["note_unsent"], *letter.place, letter.id, error, wait, now, MOST_ATTEMPTS
    )
    return status != "failed"
