"""Invent rows that a handler looked for but did not find, so that its statements find something.

On an empty database `update accounts set balance = balance + 1 where id = $1` changes nothing, and
the rehearsal could conclude nothing from it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.testing.rehearse.tables import Column, Table
from gateway.testing.rehearse.trace import Step, StepKind
from gateway.worker.upsert import quote

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
class MadeUp:
    """A row to insert into a table."""

    table: str
    sql: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The value of a column: SQL, or an argument."""

    sql: str | None = None
    argument: Any = None


def needs_rows(step: Step) -> bool:
    """Return whether the rehearsal can conclude nothing from the statement without a row.

    A delete is not included, because to delete a row that does not exist is meaningful.
    """
    is_statement = step.kind is StepKind.STATEMENT and step.rows is not None
    return is_statement and _NEEDS.search(_plain(step)) is not None


def wanted_rows(steps: Iterable[Step], tables: Sequence[Table]) -> Iterator[MadeUp]:
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
                yield _make_up(table, dict(_known(table, alias, plain, step.arguments)))


def _known(
    table: Table, alias: str, plain: str, arguments: Sequence[Any]
) -> Iterator[tuple[str, Given]]:
    """Yield the values that the statement requires in the columns of a row that it looks for."""
    columns = {column.name: column for column in table.columns}
    own = {"", table.name, alias}
    looked = _UNSET.sub(" ", plain)
    given = dict(_given(looked, arguments))
    for left, one, right, other in _JOINED.findall(looked):
        for side, partner in (((left, one), (right, other)), ((right, other), (left, one))):
            if side[0] in own and side[1] in columns:
                column = columns[side[1]]
                yield column.name, given.get(partner) or Given(sql=_filler(column))
    for (qualifier, name), value in given.items():
        if qualifier in own and name in columns:
            yield name, value


def _given(looked: str, arguments: Sequence[Any]) -> Iterator[tuple[tuple[str, str], Given]]:
    """Yield the values with which columns are compared, by qualifier and name of the column."""
    for qualifier, name, number, literal in _EQUAL.findall(looked):
        if literal:
            yield (qualifier, name), Given(sql=literal)
        elif int(number) <= len(arguments):
            yield (qualifier, name), Given(argument=_first(arguments[int(number) - 1]))


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
    is_untold = step.rows is None or plain.lower().startswith("with")
    is_hidden = is_untold and _CHANGES.search(plain) is not None
    return (step.rows == 0 or is_hidden) and _LOOKS.search(plain) is not None


def _plain(step: Step) -> str:
    return _NOISE.sub(" ", step.text).strip()


def _find(tables: Sequence[Table], name: str) -> Table | None:
    plain = name.replace('"', "")
    return next((t for t in tables if plain in (t.label, t.name, f"{t.schema}.{t.name}")), None)


def _make_up(table: Table, known: Mapping[str, Given]) -> MadeUp:
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
    return MadeUp(table=table.label, sql=sql, arguments=tuple(arguments))


def _filler(column: Column) -> str:
    if column.first_label is not None:
        return "'" + column.first_label.replace("'", "''") + "'"
    return _FILLERS_BY_TYPE.get(column.type) or _FILLERS.get(column.category, "null")
