"""The events on which a handler is rehearsed, and the rows that are invented for them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

import orjson

from gateway.base.model import Envelope, Event
from gateway.config.registry import Subscription
from gateway.config.routes import Route
from gateway.providers.samples import (
    Recorded,
    make_sample,
    sample_types,
    shared_object,
)
from gateway.testing.events import build_event, envelope_of, receive_event
from gateway.testing.rehearse.database import Column, InventedRow, Table
from gateway.testing.rehearse.trace import Step, StepKind
from gateway.worker.statements import quote

_NOISE: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/|\b(?:for(?:\s+no\s+key)?|do)\s+update\b", re.IGNORECASE | re.DOTALL
)
_TARGET: Final = re.compile(
    r'(?:\b(?:update|from|join|using)\s|,)\s*(?:only\s+|lateral\s+)?((?:"?\w+"?\.)?"?\w+"?)'
    r'(?:\s+(?:as\s+)?"?(?!(?:set|where|on|using|from|join|left|inner|cross|returning|order|group|limit'
    r'|for|union|natural|full|right)\b)(\w+)"?)?',
    re.IGNORECASE,
)
_CHANGES: Final = re.compile(r"\b(?:update|delete)\b", re.IGNORECASE)
_LOOKS: Final = re.compile(r"\b(?:select|update|delete)\b", re.IGNORECASE)
_NEEDS: Final = re.compile(r"\b(?:select|update)\b", re.IGNORECASE)
_COLUMN: Final = r'(?:"?(\w+)"?\.)?"?(\w+)"?'
_LITERAL: Final = r"\d+|'(?:[^']|'')*'|true\b|false\b"
_EQUAL: Final = re.compile(
    rf'(?<![\w."]){_COLUMN}\s*(?:[<>]?=\s*(?:any\s*\(\s*)?|\bin\s*\(\s*)(?:\$(\d+)|({_LITERAL}))',
    re.IGNORECASE,
)
_JOINED: Final = re.compile(rf'(?<![\w."]){_COLUMN}\s*=\s*{_COLUMN}(?![\w."(])')
_UNSET: Final = re.compile(r"\bset\b.*?(?=\bfrom\b|\bwhere\b|$)", re.IGNORECASE | re.DOTALL)
"""Matches the SET clause of an update, which says nothing about the row that it looks for."""

_FILLERS: Final = {"N": "0", "S": "''", "B": "false", "D": "'2000-01-01'", "T": "'0'", "A": "'{}'"}
"""By the category of the type."""

_FILLERS_BY_TYPE: Final = {
    "uuid": "'00000000-0000-0000-0000-000000000000'",
    "json": "'{}'",
    "jsonb": "'{}'",
    "bytea": "''",
    "inet": "'127.0.0.1'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnValue:
    """The value of a column: SQL, or an argument."""

    sql: str | None = None
    argument: Any = None


def needs_rows(step: Step) -> bool:
    """Return whether the rehearsal can conclude nothing from the statement without a row.

    A delete is not included, because to delete a row that does not exist is meaningful.
    """
    is_statement = step.kind is StepKind.STATEMENT and step.rows is not None
    return is_statement and _NEEDS.search(_plain(step)) is not None


def invent_rows(steps: Iterable[Step], tables: Sequence[Table]) -> Iterator[InventedRow]:
    """Yield rows for each statement that found none: one in each table in which it looked."""
    seen: set[str] = set()
    for step in steps:
        if not _is_in_vain(step):
            continue
        plain = _plain(step)
        for name, alias in _TARGET.findall(plain):
            table = _find(tables, name)
            if table is not None and table.label not in seen:
                seen.add(table.label)
                yield _invent(table, dict(_known(table, alias, plain, step.arguments)))


def _known(
    table: Table, alias: str, plain: str, arguments: Sequence[Any]
) -> Iterator[tuple[str, ColumnValue]]:
    """Yield the values that the statement requires in the columns of a row that it looks for."""
    columns = {column.name: column for column in table.columns}
    own = {"", table.name, alias}
    looked = _UNSET.sub(" ", plain)
    given = dict(_given(looked, arguments))
    for left, one, right, other in _JOINED.findall(looked):
        for side, partner in (((left, one), (right, other)), ((right, other), (left, one))):
            if side[0] in own and side[1] in columns:
                column = columns[side[1]]
                yield column.name, given.get(partner) or ColumnValue(sql=_filler(column))
    for (qualifier, name), value in given.items():
        if qualifier in own and name in columns:
            yield name, value


def _given(looked: str, arguments: Sequence[Any]) -> Iterator[tuple[tuple[str, str], ColumnValue]]:
    """Yield the values with which columns are compared, by qualifier and name of the column."""
    for qualifier, name, number, literal in _EQUAL.findall(looked):
        if literal:
            yield (qualifier, name), ColumnValue(sql=literal)
        elif int(number) <= len(arguments):
            yield (qualifier, name), ColumnValue(argument=_first(arguments[int(number) - 1]))


def _first(argument: Any) -> Any:
    """Return the first value of a list that is compared with `any`, or else the argument."""
    return argument[0] if isinstance(argument, list | tuple) and argument else argument


def _is_in_vain(step: Step) -> bool:
    """Return whether the statement looked for rows and found none.

    There is no row count for `executemany`, nor for a `with` whose parts change rows, so they may
    have found none.
    """
    if step.kind is not StepKind.STATEMENT or step.error is not None:
        return False
    plain = _plain(step)
    is_unreported = step.rows is None or plain.lower().startswith("with")
    is_hidden = is_unreported and _CHANGES.search(plain) is not None
    return (step.rows == 0 or is_hidden) and _LOOKS.search(plain) is not None


def _plain(step: Step) -> str:
    return _NOISE.sub(" ", step.text).strip()


def _find(tables: Sequence[Table], name: str) -> Table | None:
    plain = name.replace('"', "")
    return next((t for t in tables if plain in (t.label, t.name, f"{t.schema}.{t.name}")), None)


def _invent(table: Table, known: Mapping[str, ColumnValue]) -> InventedRow:
    names, places, arguments = [], [], []
    for column in table.columns:
        if column.name in known:
            given = known[column.name]
            if given.sql is None:
                arguments.append(given.argument)
            places.append(given.sql or f"${len(arguments)}")
        elif column.is_required and column.default is None and not column.is_computed:
            places.append(_filler(column))
        else:
            continue
        names.append(quote(column.name))
    sql = f"insert into {table.source} default values"
    if names:
        sql = (
            f"insert into {table.source} ({', '.join(names)}) overriding system value"  # noqa: S608
            f" values ({', '.join(places)})"
        )
    return InventedRow(table=table.label, sql=sql, arguments=tuple(arguments))


def _filler(column: Column) -> str:
    if column.first_label is not None:
        return "'" + column.first_label.replace("'", "''") + "'"
    return _FILLERS_BY_TYPE.get(column.type) or _FILLERS.get(column.category, "null")


T = TypeVar("T")

AGE: Final = timedelta(days=3)
"""The age of events, so that no time in them is mistaken for one taken by the rehearsal itself."""

MOST_EVENTS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedEvent:
    """One event on which a handler is rehearsed."""

    route: Route
    received: Event
    """The event as the handler receives it."""
    name: str
    """The event's type, and its origin if it is no sample of that type."""
    rows: tuple[InventedRow, ...] = ()
    """The rows to insert into the user's tables before the run."""

    @property
    def payload(self) -> Any:
        return self.received.payload

    @property
    def label(self) -> str:
        tables = ", ".join(row.table for row in self.rows)
        return f"{self.name}, with a row made up in {tables}" if tables else self.name

    def changed(self, **fields: Any) -> "RehearsedEvent":
        """Return the event with some fields changed."""
        return replace(self, received=replace(self.received, **fields))

    def with_row(self, row: InventedRow) -> "RehearsedEvent | None":
        """Return the event with one more row, or None if its table already has an invented row."""
        if any(row.table == other.table for other in self.rows):
            return None
        return replace(self, rows=(*self.rows, row))


def find_events(
    subscription: Subscription, route: Route, recorded: Mapping[str, Recorded], now: datetime
) -> list[RehearsedEvent]:
    """Return the recorded events that the handler takes, or else samples of its types.

    A type that the handler names, and that has no template, is tried with the object of other types
    if there is one. It may not be in the state in which that type is sent.
    """
    own = [
        RehearsedEvent(
            route=route,
            received=receive_event(route, item.sample, now=now, headers=item.headers),
            name=f"{item.type} ({file})",
        )
        for file, item in recorded.items()
        if item.provider == route.provider.name and takes(subscription, item.type)
    ]
    if own or route.provider.is_queue:
        return own
    provider = route.provider.name
    names = {type: type for type in sample_types(provider) if takes(subscription, type)}
    for type in subscription.types:
        if (kind := shared_object(provider, type)) is not None:
            names[type] = f"{type} (with the {kind} of other events)"
    samples = (
        make_sample(provider, type, now=now - AGE, livemode=bool(route.livemode)) for type in names
    )
    events = (receive_event(route, sample, now=now) for sample in samples)
    return [
        RehearsedEvent(route=route, received=event, name=names[event.type])
        for event in events
        if route.wants(envelope_of(event))
    ]


def takes(subscription: Subscription, type: str) -> bool:
    """Return whether the handler takes events of this type."""
    return any(fnmatchcase(type, glob) for glob in subscription.types)


def make_job(
    route: Route, id: str, type: str, payload: Any, occurred_at: datetime
) -> RehearsedEvent:
    """Return a job that another handler published, as the handlers of its queue receive it."""
    envelope = Envelope(id=id, type=type, occurred_at=occurred_at)
    received = build_event(route, envelope, {}, orjson.dumps(payload), occurred_at)
    return RehearsedEvent(route=route, received=received, name=type)


def without_sample(subscription: Subscription, events: Sequence[RehearsedEvent]) -> list[str]:
    """Return the types that the handler names and on which it is not tried."""
    tried = {event.received.type for event in events}
    return [t for t in subscription.types if t not in tried and not set("*?[") & set(t)]


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, spread evenly over all."""
    if len(items) <= most:
        return list(items)
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]
