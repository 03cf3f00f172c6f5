"""Derive a table row from an event: its table, key, columns and version."""

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gateway.base.errors import CommandFailed

KNOWN_COLUMNS: Final = (
    *("status", "state", "conclusion", "number", "title", "name", "full_name", "login"),
    *("ref", "before", "after", "sha", "head_sha", "tag_name", "environment"),
    *("amount", "amount_due", "amount_paid", "amount_refunded", "amount_total", "unit_amount"),
    *("currency", "customer", "payment_intent", "payment_status", "subscription", "charge"),
    *("product", "reason", "active", "cancel_at_period_end", "paid", "delinquent"),
)
"""Preferred fields, in this order."""

MOST_COLUMNS: Final = 6
FEWEST_COLUMNS: Final = 3
PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
PASSED_OVER: Final = re.compile(
    r"(.*_)?(id|object|livemode|version|at|created|updated|date|start|end|url|secret|token|key"
    r"|fingerprint|signature|email|phone|address|body|repository)"
)
"""Skipped fields: ids, times and links say little about a state, and secrets and personal
data should not be copied.
"""

LONGEST_TEXT: Final = 200
LARGEST_INTEGER: Final = 2**63 - 1

# https://docs.github.com/en/webhooks/webhook-events-and-payloads
GITHUB_OBJECTS: Final[Mapping[str, str]] = {
    "issues": "issue",
    "issue_comment": "comment",
    "commit_comment": "comment",
    "discussion_comment": "comment",
    "pull_request_review": "review",
    "pull_request_review_comment": "comment",
    "fork": "forkee",
    "ping": "hook",
    "code_scanning_alert": "alert",
    "dependabot_alert": "alert",
    "secret_scanning_alert": "alert",
}
"""The payload key of the object, for events whose object is not named after the event."""

GITHUB_RELATIONS: Final = frozenset({"member"})
"""Objects that belong to many repositories. An event is about one of them in one repository."""

GITHUB_TIMES: Final = ("updated_at", "completed_at", "submitted_at", "published_at")
TAKEN: Final = frozenset({"event", "ctx", "handler", "datetime"})
UNRESERVED: Final = frozenset(
    {*KNOWN_COLUMNS, "id", "event_id", "member_id", "repository_id", "repository", "type"}
)
"""Column names that need no quotes."""
TABLE: Final = re.compile(
    r'\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?"?(?P<name>\w+)"?\s*\((?P<body>.*?)^\)',
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
VERSION: Final = "version timestamptz not null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and the Python expression for its value."""

    name: str
    type: str
    source: str

    @property
    def sql(self) -> str:
        name = self.name if self.name in UNRESERVED else f'"{self.name}"'
        return f"{name} {self.type}"


TYPE: Final = Column(name="type", type="text", source="event.type")
REPOSITORY: Final = Column(
    name="repository", type="text", source='event.payload["repository"]["full_name"]'
)
REPOSITORY_ID: Final = Column(
    name="repository_id", type="bigint", source='event.payload["repository"]["id"]'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """The row that a handler writes for an event."""

    table: str
    summary: str
    variable: str
    """The name of the object's variable in the handler."""
    object: str
    """The Python expression of the object."""
    key: tuple[Column, ...]
    version: str
    extra: tuple[Column, ...] = ()
    """Columns that are not fields of the object."""
    content: Mapping[str, Any] = field(repr=False)

    @property
    def uses_datetime(self) -> bool:
        return self.version.startswith("datetime.")

    @property
    def values(self) -> tuple[Column, ...]:
        """The columns to store: the preferred fields, or else the first ones."""
        own = {column.name for column in (*self.key, *self.extra)}
        found = [c for name in KNOWN_COLUMNS if name not in own and (c := self._column(name))]
        for name in self.content:
            is_fit = PLAIN.fullmatch(name) and not PASSED_OVER.fullmatch(name)
            if is_fit and len(found) < FEWEST_COLUMNS and name not in {*KNOWN_COLUMNS, *own}:
                found += [column] if (column := self._column(name)) else []
        return (*self.extra, *(found or [TYPE])[:MOST_COLUMNS])

    @property
    def key_lines(self) -> list[str]:
        """The lines of `create table` that `ctx.upsert` needs: a unique key and a version."""
        if len(self.key) == 1:
            return [f"{self.key[0].sql} primary key", VERSION]
        names = ", ".join(column.name for column in self.key)
        columns = [f"{column.sql} not null" for column in self.key]
        return [*columns, VERSION, f"primary key ({names})"]

    def filled(self, sql: str) -> Column | None:
        """Return an existing column with its value, or None if the event has none of its type."""
        name, _, type = sql.partition(" ")
        name = name.strip('"')
        if name in self.content and self.content[name] is None:
            return Column(name=name, type=type, source=f'{self.variable}["{name}"]')
        columns = (TYPE, *self.extra, self._column(name))
        return next((column for column in columns if column and column.sql == sql), None)

    def _column(self, name: str) -> Column | None:
        """Return the column of a field, or None if the field is missing or nested."""
        type = _sql_type(self.content.get(name))
        source = f'{self.variable}["{name}"]'
        return Column(name=name, type=type, source=source) if type else None


def read_row(provider: str, type: str, payload: Any) -> SampleRow:
    """Find the object of an event in the payload layout of its provider."""
    document = payload if isinstance(payload, dict) else {}
    if provider == "stripe":
        return _stripe_row(type, document)
    return _github_row(type, document)


def _stripe_row(type: str, payload: Mapping[str, Any]) -> SampleRow:
    version = "event.occurred_at"
    snapshot, thin = _nested(payload, "data", "object"), _nested(payload, "related_object")
    if "id" in snapshot:
        place = 'event.payload["data"]["object"]'
        return _object(str(snapshot.get("object")), place, snapshot, version)
    if "id" in thin:
        return _object(str(thin.get("type")), 'event.payload["related_object"]', thin, version)
    return _event(type, payload, version)


def _github_row(type: str, payload: Mapping[str, Any]) -> SampleRow:
    event = type.partition(".")[0]
    name = GITHUB_OBJECTS.get(event, event)
    kind, variable = name if f"{name}s" == event else event, _variable(name)
    content, repository = _nested(payload, name), _nested(payload, "repository")
    extra = (REPOSITORY,) if "full_name" in repository and name != "repository" else ()
    if name in GITHUB_RELATIONS and "id" in repository:
        inner = Column(name=f"{name}_id", type="bigint", source=f'{variable}["id"]')
        key: tuple[Column, ...] = (REPOSITORY_ID, inner)
    elif "id" in content:
        key = ()
    elif "number" in content and "id" in repository:
        inner = Column(name="number", type="bigint", source=f'{variable}["number"]')
        key = (REPOSITORY_ID, inner)
    else:
        return _event(type, payload, "event.received_at", extra)
    # GitHub sends no event time, but most objects have a modification time.
    changed = next((time for time in GITHUB_TIMES if _is_time(content.get(time))), None)
    version = f'datetime.fromisoformat({variable}["{changed}"])' if changed else "event.received_at"
    place = f'event.payload["{name}"]'
    return _object(kind, place, content, version, variable=variable, key=key, extra=extra)


def _object(
    kind: str,
    place: str,
    content: Mapping[str, Any],
    version: str,
    *,
    variable: str | None = None,
    key: tuple[Column, ...] = (),
    extra: tuple[Column, ...] = (),
) -> SampleRow:
    """Return a row per object, with its id as the key unless another key is given."""
    name = variable or _variable(kind)
    id = Column(name="id", type=_sql_type(content.get("id")) or "text", source=f'{name}["id"]')
    return SampleRow(
        table=_plural(_words(kind)),
        summary=f"The {_words(kind).replace('_', ' ')} as it stands.",
        variable=name,
        object=place,
        key=key or (id,),
        version=version,
        extra=extra,
        content=content,
    )


def _event(
    type: str, payload: Mapping[str, Any], version: str, extra: tuple[Column, ...] = ()
) -> SampleRow:
    """Return a row per event, for events without an object, such as a push."""
    return SampleRow(
        table=f"{_words(type)}_events",
        summary=f"One row for each {_words(type).replace('_', ' ')}.",
        variable="payload",
        object="event.payload",
        key=(Column(name="event_id", type="text", source="event.id"),),
        version=version,
        extra=extra,
        content=payload,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """The table that a handler writes to. `sql` creates it, and is empty if it exists."""

    name: str
    values: tuple[Column, ...]
    sql: str = ""


def choose_table(row: SampleRow, function: str, schema: Iterable[str]) -> RowTable:
    """Choose the table of the row's kind.

    If another handler has created it, both write the same columns of one row. If that table has an
    incompatible structure, a new table named after the function is used.
    """
    bodies = {
        found["name"].lower(): found["body"] for sql in schema for found in TABLE.finditer(sql)
    }
    if row.table not in bodies:
        return _new_table(row.table, row)
    values = _shared_columns(row, bodies[row.table])
    if values:
        return RowTable(name=row.table, values=values)
    if function in bodies:
        raise CommandFailed(
            f"the schema has the tables {row.table} and {function} already, both with other "
            "columns: give the handler another --name"
        )
    return _new_table(function, row)


def _new_table(name: str, row: SampleRow) -> RowTable:
    lines = [*row.key_lines, *(column.sql for column in row.values)]
    # The columns of the key come first, then the values, and constraints last.
    lines.sort(key=lambda line: 2 if line.startswith("primary key") else line == VERSION)
    body = ",\n".join(f"    {line}" for line in lines)
    sql = f"create table if not exists {name} (\n{body}\n);\n"
    return RowTable(name=name, values=row.values, sql=sql)


def _shared_columns(row: SampleRow, body: str) -> tuple[Column, ...] | None:
    """Return the columns to write to an existing table, or None if the row does not fit it."""
    lines = [" ".join(line.partition("--")[0].split()).rstrip(",") for line in body.splitlines()]
    if not set(row.key_lines) <= set(lines):
        return None
    found = [row.filled(line) for line in lines if line and line not in row.key_lines]
    return None if None in found else tuple(column for column in found if column)


def _nested(content: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = content.get(name)
        content = value if isinstance(value, dict) else {}
    return content


def _sql_type(value: Any) -> str | None:
    match value:
        case bool():
            return "boolean"
        case int() if abs(value) <= LARGEST_INTEGER:
            return "bigint"
        case float():
            return "double precision"
        case str() if len(value) <= LONGEST_TEXT:
            return "text"
    return None


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _words(text: str) -> str:
    """Convert text such as `checkout.session` to a Python and SQL name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "event"


def _variable(kind: str) -> str:
    """Return a short variable name that shadows no name that the handler needs."""
    name = _words(kind)
    usable = name.isidentifier() and name not in TAKEN and not keyword.iskeyword(name)
    return name if usable else f"the_{name}"


def _plural(name: str) -> str:
    if name.endswith(("us", "ss", "x", "ch")):
        return f"{name}es"
    if name.endswith("s"):
        return name
    return f"{name[:-1]}ies" if name.endswith("y") and name[-2:-1] not in "aeiou" else f"{name}s"
