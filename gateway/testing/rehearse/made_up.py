"""Rows that a handler looked for in vain, made up so that its statements find something.

On an empty database `update accounts set balance = balance + 1 where id = $1` changes nothing, and
nothing could be said of it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.run.upsert import quote
from gateway.testing.rehearse.tables import Column, Table
from gateway.testing.rehearse.trace import Kind, Step

_TARGET: Final = re.compile(
    r'\b(?:update|from|into)\s+(?:only\s+)?((?:"?\w+"?\.)?"?\w+"?)', re.IGNORECASE
)
_UPDATES: Final = re.compile(r"\s*update\b", re.IGNORECASE)
_CHANGES: Final = re.compile(r"\s*(?:update|delete)\b", re.IGNORECASE)
_LOOKS: Final = re.compile(r"\s*(?:select|update|delete)\b", re.IGNORECASE)
_WHERE: Final = re.compile(r"\bwhere\b(.*)", re.IGNORECASE | re.DOTALL)
_EQUAL: Final = re.compile(r'(?<![\w."])(?:\w+\.)?"?(\w+)"?\s*=\s*\$(\d+)')
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
class MadeUp:
    """A row to be put into a table."""

    table: str
    sql: str
    arguments: tuple[Any, ...]


def changes_nothing(steps: Iterable[Step]) -> list[Step]:
    """The statements that were to change rows and found none."""
    return [s for s in _in_vain(steps) if _CHANGES.match(s.text)]


def updates_nothing(steps: Iterable[Step]) -> list[Step]:
    """Those of them that make no sense without a row. To delete what is not there does."""
    return [s for s in _in_vain(steps) if _UPDATES.match(s.text)]


def wanted_rows(steps: Iterable[Step], tables: Sequence[Table]) -> Iterator[MadeUp]:
    """A row for each statement that found none, where the statement tells its key."""
    seen: set[str] = set()
    for step in _in_vain(steps):
        target, where = _TARGET.search(step.text), _WHERE.search(step.text)
        table = _find(tables, target[1]) if target else None
        if table is None or where is None or table.label in seen:
            continue
        values = {name: step.arguments[int(n) - 1] for name, n in _EQUAL.findall(where[1])}
        known = {c.name: values[c.name] for c in table.columns if c.name in values}
        if known:
            seen.add(table.label)
            yield _make_up(table, known)


def _in_vain(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        if step.kind is Kind.STATEMENT and step.rows == 0 and _LOOKS.match(step.text):
            yield step


def _find(tables: Sequence[Table], name: str) -> Table | None:
    plain = name.replace('"', "")
    return next((t for t in tables if plain in (t.label, t.name, f"{t.schema}.{t.name}")), None)


def _make_up(table: Table, known: dict[str, Any]) -> MadeUp:
    names, places, arguments = [], [], []
    for column in table.columns:
        if column.name in known:
            arguments.append(known[column.name])
            places.append(f"${len(arguments)}")
        elif column.is_required and column.default is None and not column.is_computed:
            places.append(_filler(column))
        else:
            continue
        names.append(quote(column.name))
    sql = (
        f"insert into {table.source} ({', '.join(names)}) overriding system value"  # noqa: S608
        f" values ({', '.join(places)})"
    )
    return MadeUp(table=table.label, sql=sql, arguments=tuple(arguments))


def _filler(column: Column) -> str:
    if column.first_label is not None:
        return "'" + column.first_label.replace("'", "''") + "'"
    return _FILLERS_BY_TYPE.get(column.type) or _FILLERS.get(column.category, "null")
