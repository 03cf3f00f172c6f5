"""Alerts in the ledger: what stands, and whom it was told."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

import asyncpg
from typing_extensions import TypedDict

from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES

LOCK: Final = 0x616C657274
"""One worker at a time decides: "alert" in ASCII."""

MOST_COUNTED: Final = 10_000
"""Up to so many are counted: it costs the same, however many there are."""


class Kind(StrEnum):
    """What an alert is about."""

    DEAD = "dead"
    BACKLOG = "backlog"
    EFFECTS = "effects"
    """Effects of unknown outcome."""


Key = tuple[Kind, str, str]
"""Kind, route, handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """How an alert stands."""

    kind: Kind
    route: str
    handler: str
    raised_at: datetime
    cleared_at: datetime | None = None
    round: int = 0
    """How often it was told since it was raised."""
    told_at: datetime | None = None
    """The last time, this one or an earlier one of the same handler."""
    told_through: datetime | None = None
    """Dead letters, or effects of unknown outcome, up to this moment were told of."""
    paused: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.route, self.handler

    @property
    def stands(self) -> bool:
        return self.cleared_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that may be worth an alert."""

    kind: Kind
    route: str
    handler: str
    is_enough: bool = True
    """Whether it is worth a telling of its own."""
    paused: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.route, self.handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Who does not let a handler run."""

    handler: str
    """Empty: all of the route."""
    actor: str
    since: datetime
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What there is to say of an alert."""

    count: int
    """At most MOST_COUNTED."""
    since: datetime
    untold: int = 0
    """Dead letters, or effects of unknown outcome, that were not reported yet."""
    error: str | None = None
    """Why the last one died, or how the last call ended."""
    pause: Pause | None = None
    orphaned: bool = False
    """No worker has the handler."""


async def start_look(ledger: Executor, now: datetime | None) -> datetime | None:
    """The time by the ledger's clock; None while another worker looks."""
    [row] = await ledger.fetch(QUERIES["start_look"], LOCK, now)
    return row["at"] if row["is_mine"] else None


async def load_alerts(ledger: Executor) -> list[Alert]:
    """What stands, and what stood once."""
    rows = await ledger.fetch(QUERIES["list_alerts"])
    return [Alert(**(dict(row) | {"kind": Kind(row["kind"])})) for row in rows]


async def look_dead(ledger: Executor, *, enough: int, until: datetime) -> list[Finding]:
    """Handlers with dead letters, and whether enough of them are news."""
    rows = await ledger.fetch(QUERIES["look_dead"], until, enough)
    return [
        Finding(kind=Kind.DEAD, route=r["route"], handler=r["handler"], is_enough=r["n"] >= enough)
        for r in rows
    ]


async def look_effects(ledger: Executor, *, enough: int, until: datetime) -> list[Finding]:
    """Return handlers with effects of unknown outcome, and whether enough of them are news."""
    rows = await ledger.fetch(QUERIES["look_effects"], until, enough, MOST_COUNTED)
    return [
        Finding(
            kind=Kind.EFFECTS, route=r["route"], handler=r["handler"], is_enough=r["n"] >= enough
        )
        for r in rows
    ]


async def look_backlog(ledger: Executor, *, due_before: datetime) -> list[Finding]:
    """Handlers with a delivery that has been due for too long."""
    rows = await ledger.fetch(QUERIES["look_backlog"], due_before)
    return [Finding(kind=Kind.BACKLOG, **row) for row in rows]


async def describe_alerts(
    ledger: Executor, keys: Iterable[Key], at: datetime | None = None
) -> dict[Key, Details]:
    """What there is to say of each; nothing of one that is over."""
    found: dict[Key, Details] = {}
    asked = list(keys)
    routes, handlers = _columns(asked, Kind.DEAD)
    for r in await ledger.fetch(QUERIES["describe_dead"], routes, handlers, MOST_COUNTED):
        found[Kind.DEAD, r["route"], r["handler"]] = Details(
            count=r["n"], since=r["since"], untold=r["untold"], error=r["error"]
        )
    routes, handlers = _columns(asked, Kind.EFFECTS)
    for r in await ledger.fetch(QUERIES["describe_effects"], routes, handlers, MOST_COUNTED):
        found[Kind.EFFECTS, r["route"], r["handler"]] = Details(
            count=r["n"], since=r["since"], untold=r["untold"], error=r["error"]
        )
    routes, handlers = _columns(asked, Kind.BACKLOG)
    for r in await ledger.fetch(QUERIES["describe_backlog"], routes, handlers, MOST_COUNTED, at):
        found[Kind.BACKLOG, r["route"], r["handler"]] = Details(
            count=r["n"], since=r["since"], pause=_pause(r), orphaned=r["orphaned"]
        )
    return found


def _pause(row: asyncpg.Record) -> Pause | None:
    if row["paused_at"] is None:
        return None
    return Pause(
        handler=row["paused_handler"],
        actor=row["paused_by"],
        since=row["paused_at"],
        reason=row["paused_why"],
    )


def _columns(keys: Sequence[Key], kind: Kind) -> tuple[list[str], list[str]]:
    mine = [key for key in keys if key[0] is kind]
    return [route for _, route, _ in mine], [handler for _, _, handler in mine]


async def keep_alert(ledger: Executor, alert: Alert) -> None:
    """How it stands from now on."""
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


class Told(TypedDict):
    """How an alert got to a destination."""

    destination: str
    status: str
    """waiting, sent or failed: of the last message."""
    sent_at: datetime | None
    """When it took one last."""
    attempts: int
    error: str | None


class PauseRow(TypedDict):
    """Who paused the handler."""

    actor: str
    since: datetime
    reason: str | None


class AlertRow(TypedDict):
    """An alert that stands."""

    kind: str
    route: str
    handler: str
    raised_at: datetime
    since: datetime | None
    count: int
    count_capped: bool
    error: str | None
    paused: PauseRow | None
    orphaned: bool
    told_at: datetime | None
    rounds: int
    told: list[Told]


async def list_alerts(ledger: Executor) -> list[AlertRow]:
    """What stands, the oldest first, counted now."""
    standing = [alert for alert in await load_alerts(ledger) if alert.stands]
    details = await describe_alerts(ledger, [alert.key for alert in standing])
    told: dict[Key, list[Told]] = {}
    for row in await ledger.fetch(QUERIES["list_messages"]):
        key = (Kind(row["kind"]), row["route"], row["handler"])
        told.setdefault(key, []).append(_told(row))
    return [_row_of(alert, details.get(alert.key), told.get(alert.key, [])) for alert in standing]


def _row_of(alert: Alert, details: Details | None, told: list[Told]) -> AlertRow:
    """One that ended since the last look has no details any more."""
    pause = details.pause if details else None
    return {
        "kind": alert.kind.value,
        "route": alert.route,
        "handler": alert.handler,
        "raised_at": alert.raised_at,
        "since": details.since if details else None,
        "count": details.count if details else 0,
        "count_capped": details is not None and details.count == MOST_COUNTED,
        "error": details.error if details else None,
        "paused": {"actor": pause.actor, "since": pause.since, "reason": pause.reason}
        if pause
        else None,
        "orphaned": details.orphaned if details else False,
        "told_at": alert.told_at if alert.round else None,
        "rounds": alert.round,
        "told": told if alert.round else [],
    }


def _told(row: asyncpg.Record) -> Told:
    return {
        "destination": row["destination"],
        "status": row["status"],
        "sent_at": row["sent_at"],
        "attempts": row["attempts"],
        "error": row["error"],
    }
