"""Alerts in the ledger: the active ones, and which destinations were notified."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

import orjson

from gateway.config.routes import Alerts
from gateway.ledger.connection import QUERIES, Executor

LOCK: Final = 0x616C657274
"""The advisory lock that lets one worker at a time evaluate alerts: "alert" in ASCII."""

MOST_COUNTED: Final = 10_000
"""The maximum that is counted, so that the cost is bounded."""


class AlertKind(StrEnum):
    """The subject of an alert."""

    DEAD = "dead"
    BACKLOG = "backlog"
    EFFECTS = "effects"
    """Effects with an unknown outcome."""


Key = tuple[AlertKind, str, str]
"""Kind, route, handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The state of an alert."""

    kind: AlertKind
    route: str
    handler: str
    raised_at: datetime
    cleared_at: datetime | None = None
    round: int = 0
    """The number of notifications since it was raised."""
    told_at: datetime | None = None
    """The time of the last notification, of this alert or of an earlier one of the same handler."""
    told_through: datetime | None = None
    """Dead letters, or effects with an unknown outcome, up to this time have been reported."""
    paused: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.route, self.handler

    @property
    def stands(self) -> bool:
        return self.cleared_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFinding:
    """A condition that may deserve an alert."""

    kind: AlertKind
    route: str
    handler: str
    is_enough: bool = True
    """Whether it is worth a notification of its own."""
    paused: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.route, self.handler


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerPause:
    """The pause of a handler: its author, time and reason."""

    handler: str
    """Empty if the whole route is paused."""
    actor: str
    since: datetime
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """The current details of an alert."""

    count: int
    """At most MOST_COUNTED."""
    since: datetime
    untold: int = 0
    """The number of dead letters, or effects with an unknown outcome, that were not reported
    yet."""
    error: str | None = None
    """The error of the last dead letter, or of the last call."""
    pause: HandlerPause | None = None
    orphaned: bool = False
    """Whether no worker has the handler."""


async def start_evaluation(ledger: Executor, now: datetime | None) -> datetime | None:
    """Return the time by the ledger's clock, or None while another worker evaluates alerts."""
    [row] = await ledger.fetch(QUERIES["start_evaluation"], LOCK, now)
    return row["at"] if row["is_mine"] else None


async def load_alerts(ledger: Executor) -> list[Alert]:
    """Return all alerts, active or cleared."""
    rows = await ledger.fetch(QUERIES["list_alerts"])
    return [Alert(**(dict(row) | {"kind": AlertKind(row["kind"])})) for row in rows]


async def find_conditions(
    ledger: Executor, alerts: Alerts, *, at: datetime, until: datetime
) -> list[AlertFinding]:
    """Return the conditions that may deserve an alert.

    Dead letters and effects count up to `until`. Handlers with fewer than are worth a notification
    are returned too, so that their alert stands.
    """
    asked = (
        (AlertKind.DEAD, alerts.dead, QUERIES["find_dead_alerts"], (until, alerts.dead)),
        (AlertKind.BACKLOG, alerts.backlog, QUERIES["find_backlog_alerts"], (at - alerts.backlog,)),
        (
            AlertKind.EFFECTS,
            alerts.effects,
            QUERIES["find_effect_alerts"],
            (until, alerts.effects, MOST_COUNTED),
        ),
    )
    return [
        AlertFinding(kind=kind, **row)
        for kind, is_on, query, arguments in asked
        if is_on
        for row in await ledger.fetch(query, *arguments)
    ]


async def describe_alerts(
    ledger: Executor, keys: Iterable[Key], at: datetime | None = None
) -> dict[Key, Details]:
    """Return the current details of each alert. An alert that is over has none."""
    asked = list(keys)
    queries: tuple[tuple[AlertKind, str, tuple[object, ...]], ...] = (
        (AlertKind.DEAD, QUERIES["describe_dead"], ()),
        (AlertKind.EFFECTS, QUERIES["describe_effects"], ()),
        (AlertKind.BACKLOG, QUERIES["describe_backlog"], (at,)),
    )
    found = {}
    for kind, query, more in queries:
        routes = [route for other, route, _ in asked if other is kind]
        handlers = [handler for other, _, handler in asked if other is kind]
        for row in await ledger.fetch(query, routes, handlers, MOST_COUNTED, *more):
            columns = dict(row)
            key = (kind, columns.pop("route"), columns.pop("handler"))
            paused = [name for name in columns if name.startswith("pause_")]
            pause = {name.removeprefix("pause_"): columns.pop(name) for name in paused}
            is_paused = pause.get("since") is not None
            found[key] = Details(**columns, pause=HandlerPause(**pause) if is_paused else None)
    return found


async def keep_alert(ledger: Executor, alert: Alert) -> None:
    """Store the state of an alert."""
    await ledger.execute(
        QUERIES["keep_alert"],
        *alert.key,
        alert.raised_at,
        alert.cleared_at,
        alert.round,
        alert.told_at,
        alert.told_through,
        alert.paused,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReceipt:
    """The notification of one destination about an alert."""

    destination: str
    status: str
    """Status of the last message: waiting, sent or failed."""
    sent_at: datetime | None
    """The time of the last message that the destination accepted."""
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPause:
    """The pause of a handler with an alert."""

    actor: str
    since: datetime
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """An active alert, with current counts.

    It has no details if the condition ended since the last evaluation.
    """

    kind: str
    route: str
    handler: str
    raised_at: datetime
    since: datetime | None
    count: int
    count_capped: bool
    error: str | None
    paused: AlertPause | None
    orphaned: bool
    told_at: datetime | None
    rounds: int
    told: list[AlertReceipt]


async def list_alerts(ledger: Executor) -> list[AlertRow]:
    """Return the active alerts, oldest first."""
    standing = [alert for alert in await load_alerts(ledger) if alert.stands]
    details = await describe_alerts(ledger, [alert.key for alert in standing])
    told: dict[Key, list[AlertReceipt]] = {}
    for row in await ledger.fetch(QUERIES["list_messages"]):
        columns = dict(row)
        key = (AlertKind(columns.pop("kind")), columns.pop("route"), columns.pop("handler"))
        told.setdefault(key, []).append(AlertReceipt(**columns))
    rows = []
    for alert in standing:
        known = details.get(alert.key)
        pause = known.pause if known else None
        rows.append(
            AlertRow(
                kind=alert.kind.value,
                route=alert.route,
                handler=alert.handler,
                raised_at=alert.raised_at,
                since=known.since if known else None,
                count=known.count if known else 0,
                count_capped=known is not None and known.count == MOST_COUNTED,
                error=known.error if known else None,
                paused=AlertPause(actor=pause.actor, since=pause.since, reason=pause.reason)
                if pause
                else None,
                orphaned=known is not None and known.orphaned,
                told_at=alert.told_at if alert.round else None,
                rounds=alert.round,
                told=told.get(alert.key, []) if alert.round else [],
            )
        )
    return rows


SENDING: Final = timedelta(minutes=1)
"""How long a message is reserved for the process that took it: longer than sending may take."""

FIRST_WAIT: Final = timedelta(seconds=10)
LONGEST_WAIT: Final = timedelta(hours=1)
MOST_ATTEMPTS: Final = 10
"""The maximum number of attempts for a message that an alert is over."""
BATCH: Final = 10


Destination = Literal["webhook", "slack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """A message to one destination."""

    kind: AlertKind
    route: str
    handler: str
    destination: Destination
    id: str
    message: str
    """JSON, the same in every attempt."""
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
    """Queue a message for each destination, in place of an earlier one that was not delivered."""
    text = orjson.dumps(message, option=orjson.OPT_UTC_Z).decode()
    await ledger.execute(QUERIES["put_message"], *key, list(destinations), id, text, at)


async def take_messages(
    ledger: Executor, destinations: Sequence[Destination], now: datetime | None
) -> list[AlertMessage]:
    """Return messages that are due, and reserve them for the caller."""
    rows = await ledger.fetch(QUERIES["take_messages"], list(destinations), now, BATCH, SENDING)
    return [AlertMessage(**(dict(row) | {"kind": AlertKind(row["kind"])})) for row in rows]


async def forget_destinations(ledger: Executor, but: Sequence[Destination]) -> None:
    """Delete the messages to all other destinations, which are no longer configured."""
    await ledger.execute(QUERIES["forget_destinations"], list(but))


async def note_sent(ledger: Executor, letter: AlertMessage, now: datetime | None) -> None:
    """Record that the message was delivered."""
    await ledger.execute(QUERIES["note_sent"], *letter.place, letter.id, now)


async def note_unsent(
    ledger: Executor,
    letter: AlertMessage,
    now: datetime | None,
    *,
    error: str,
    retry_after: timedelta | None,
) -> bool:
    """Record that the message was not delivered. Return whether it will be tried again."""
    wait = min(FIRST_WAIT * 2 ** min(letter.attempts - 1, MOST_ATTEMPTS), LONGEST_WAIT)
    if retry_after is not None:
        wait = min(max(retry_after, wait), LONGEST_WAIT)
    status: str | None = await ledger.fetchval(
        QUERIES["note_unsent"], *letter.place, letter.id, error, wait, now, MOST_ATTEMPTS
    )
    return status != "failed"
