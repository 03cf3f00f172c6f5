"""Choose the table of a new handler: an existing one that fits, or a new one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.base.errors import CommandFailed
from gateway.dev.scaffold.subject import KNOWN_COLUMNS, SampleSubject, SubjectColumn

TABLE: Final = re.compile(
    r'\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?"?(?P<name>\w+)"?\s*\((?P<body>.*?)^\)',
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
COLUMN: Final = re.compile(
    r'"?(?P<name>[a-z_][a-z0-9_]*)"?\s+(?P<type>text|bigint|boolean|double precision|timestamptz)'
    r"(?:\s+(?P<rule>primary key|not null))?"
)
KEY: Final = re.compile(r"primary key \((?P<names>[a-z0-9_, ]+)\)")
UNRESERVED: Final = frozenset(
    {
        *KNOWN_COLUMNS,
        "id",
        "event_id",
        "member_id",
        "repository_id",
        "repository",
        "type",
        "version",
    }
)
"""Column names that need no quotes."""

VERSION: Final = SubjectColumn(name="version", type="timestamptz", source="")
TYPE: Final = SubjectColumn(name="type", type="text", source="event.type")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """The table that a handler writes to. `sql` creates it, and is empty if it exists."""

    name: str
    values: tuple[SubjectColumn, ...]
    sql: str = ""


def choose_table(subject: SampleSubject, function: str, schema: Iterable[str]) -> NewTable:
    """Choose the table of the subject's kind.

    If another handler has created it, both write the same columns of one row. If that table has an
    incompatible structure, a new table named after the function is used.
    """
    bodies = {
        found["name"].lower(): found["body"] for sql in schema for found in TABLE.finditer(sql)
    }
    if subject.table not in bodies:
        return _new(subject.table, subject)
    values = _fitting(subject, bodies[subject.table])
    if values:
        return NewTable(name=subject.table, values=values)
    if function in bodies:
        raise CommandFailed(
            f"the schema has the tables {subject.table} and {function} already, both with other "
            "columns: give the handler another --name"
        )
    return _new(function, subject)


def _new(name: str, subject: SampleSubject) -> NewTable:
    return NewTable(name=name, values=subject.values, sql=_sql(name, subject))


def _sql(name: str, subject: SampleSubject) -> str:
    single = len(subject.key) == 1
    rules = {column.name: "primary key" if single else "not null" for column in subject.key}
    rules[VERSION.name] = "not null"
    columns = (*subject.key, *subject.values, VERSION)
    names = [_quoted(column.name) for column in columns]
    wide, deep = max(map(len, names)), max(len(column.type) for column in columns)
    lines = [
        f"{shown:{wide}} {column.type:{deep}} {rules.get(column.name, '')}".rstrip()
        for shown, column in zip(names, columns, strict=True)
    ]
    if not single:
        lines.append(f"primary key ({', '.join(column.name for column in subject.key)})")
    body = ",\n".join(f"    {line}" for line in lines)
    return f"create table if not exists {name} (\n{body}\n);\n"


def _quoted(name: str) -> str:
    return name if name in UNRESERVED else f'"{name}"'


def _fitting(subject: SampleSubject, body: str) -> tuple[SubjectColumn, ...] | None:
    """Return the columns to write to an existing table, or None if it does not fit the subject."""
    found = dict(_columns(body))
    key = {column.name: column.type for column in subject.key}
    rules = {name: rule for name, (_, rule) in found.items() if rule}
    if rules.keys() != {*key, VERSION.name}:
        return None
    if any(found[name][0] != type for name, type in (key | {VERSION.name: VERSION.type}).items()):
        return None
    values = [
        _filled(subject, name, type) for name, (type, rule) in found.items() if name not in rules
    ]
    return None if None in values else tuple(value for value in values if value)


def _columns(body: str) -> Iterator[tuple[str, tuple[str, str | None]]]:
    for line in body.splitlines():
        text = line.partition("--")[0].strip().removesuffix(",")
        match = COLUMN.fullmatch(text)
        if match:
            yield match["name"], (match["type"], match["rule"])
        elif text and not KEY.fullmatch(text):
            yield text, ("unknown", "unknown")


def _filled(subject: SampleSubject, name: str, type: str) -> SubjectColumn | None:
    others: Mapping[str, SubjectColumn] = {column.name: column for column in (TYPE, *subject.extra)}
    if name in subject.content and subject.content[name] is None:
        return SubjectColumn(name=name, type=type, source=f'{subject.variable}["{name}"]')
    column = others.get(name) or subject.column(name)
    return column if column and column.type == type else None
