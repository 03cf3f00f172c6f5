"""Derive a table row from an event, and choose the table that it is written to."""

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gateway.base.errors import CommandFailed

KNOWN_COLUMNS: Final = (
    "status",
    "state",
    "conclusion",
    "number",
    "title",
    "name",
    "full_name",
    "login",
    "ref",
    "before",
    "after",
    "sha",
    "head_sha",
    "tag_name",
    "environment",
    "amount",
    "amount_due",
    "amount_paid",
    "amount_refunded",
    "amount_total",
    "unit_amount",
    "currency",
    "customer",
    "payment_intent",
    "payment_status",
    "subscription",
    "charge",
    "product",
    "reason",
    "active",
    "cancel_at_period_end",
    "paid",
    "delinquent",
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

TAKEN: Final = frozenset({"event", "ctx", "handler", "datetime"})
GITHUB_TIMES: Final = ("updated_at", "completed_at", "submitted_at", "published_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectColumn:
    """A column and the Python expression for its value."""

    name: str
    type: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSubject:
    """The row that a handler writes for an event."""

    table: str
    summary: str
    variable: str
    """The name of the object's variable in the handler."""
    place: str
    """The Python expression of the object."""
    key: tuple[SubjectColumn, ...]
    version: str
    extra: tuple[SubjectColumn, ...]
    """Columns that are not fields of the object."""
    content: Mapping[str, Any] = field(repr=False)

    def column(self, name: str) -> SubjectColumn | None:
        """Return the column of a field, or None if the field is missing or nested."""
        type = _sql_type(self.content.get(name))
        source = f'{self.variable}["{name}"]'
        return SubjectColumn(name=name, type=type, source=source) if type else None

    @property
    def values(self) -> tuple[SubjectColumn, ...]:
        """Fields to store: the preferred ones, or else the first ones."""
        names = [name for name in KNOWN_COLUMNS if name in self.content]
        others = [n for n in self.content if PLAIN.fullmatch(n) and not PASSED_OVER.fullmatch(n)]
        own = {column.name for column in (*self.key, *self.extra)}
        found = [c for n in names if n not in own and (c := self.column(n))]
        for name in others:
            if len(found) < FEWEST_COLUMNS and name not in {*names, *own}:
                found += [column] if (column := self.column(name)) else []
        if not found:
            found = [SubjectColumn(name="type", type="text", source="event.type")]
        return (*self.extra, *found[:MOST_COLUMNS])


def read_subject(provider: str, type: str, payload: Any) -> SampleSubject:
    """Find the object of an event in the payload layout of its provider."""
    document = payload if isinstance(payload, dict) else {}
    if provider == "stripe":
        return _stripe_subject(type, document)
    return _github_subject(type, document)


def _stripe_subject(type: str, payload: Mapping[str, Any]) -> SampleSubject:
    version = "event.occurred_at"
    snapshot = _nested(_nested(payload, "data"), "object")
    if "id" in snapshot:
        kind, place = snapshot.get("object"), 'event.payload["data"]["object"]'
        return _object(str(kind), place, snapshot, version)
    thin = _nested(payload, "related_object")
    if "id" in thin:
        return _object(str(thin.get("type")), 'event.payload["related_object"]', thin, version)
    return _event(type, payload, version)


def _github_subject(type: str, payload: Mapping[str, Any]) -> SampleSubject:
    event = type.partition(".")[0]
    name = GITHUB_OBJECTS.get(event, event)
    kind = name if f"{name}s" == event else event
    content, repository = _nested(payload, name), _nested(payload, "repository")
    place = f'event.payload["{name}"]'
    extra = _repository_column(repository) if name != "repository" else ()
    version = _github_version(_variable(name), content)
    if name in GITHUB_RELATIONS and "id" in repository:
        key = _repository_key(f"{name}_id", f'{_variable(name)}["id"]')
        return _object(kind, place, content, version, variable=name, extra=extra, key=key)
    if "id" in content:
        return _object(kind, place, content, version, variable=name, extra=extra)
    if "number" in content and "id" in repository:
        key = _repository_key("number", f'{_variable(name)}["number"]')
        return _object(kind, place, content, version, variable=name, extra=extra, key=key)
    return _event(type, payload, "event.received_at", extra=extra)


def _repository_key(name: str, source: str) -> tuple[SubjectColumn, ...]:
    """Return the key of an object that is unique within its repository only."""
    return (
        SubjectColumn(
            name="repository_id", type="bigint", source='event.payload["repository"]["id"]'
        ),
        SubjectColumn(name=name, type="bigint", source=source),
    )


def _repository_column(repository: Mapping[str, Any]) -> tuple[SubjectColumn, ...]:
    if "full_name" not in repository:
        return ()
    source = 'event.payload["repository"]["full_name"]'
    return (SubjectColumn(name="repository", type="text", source=source),)


def _github_version(variable: str, content: Mapping[str, Any]) -> str:
    """Return the expression of the version: GitHub sends no event time, but most objects
    have a modification time.
    """
    for name in GITHUB_TIMES:
        if _is_time(content.get(name)):
            return f'datetime.fromisoformat({variable}["{name}"])'
    return "event.received_at"


def _object(
    kind: str,
    place: str,
    content: Mapping[str, Any],
    version: str,
    *,
    variable: str | None = None,
    key: tuple[SubjectColumn, ...] = (),
    extra: tuple[SubjectColumn, ...] = (),
) -> SampleSubject:
    name = _variable(variable or kind)
    id_type = _sql_type(content.get("id")) or "text"
    return SampleSubject(
        table=_plural(_words(kind)),
        summary=f"The {_words(kind).replace('_', ' ')} as it stands.",
        variable=name,
        place=place,
        key=key or (SubjectColumn(name="id", type=id_type, source=f'{name}["id"]'),),
        version=version,
        extra=extra,
        content=content,
    )


def _event(
    type: str, payload: Mapping[str, Any], version: str, *, extra: tuple[SubjectColumn, ...] = ()
) -> SampleSubject:
    """Return a row per event, for events without an object, such as a push."""
    return SampleSubject(
        table=f"{_words(type)}_events",
        summary=f"One row for each {_words(type).replace('_', ' ')}.",
        variable="payload",
        place="event.payload",
        key=(SubjectColumn(name="event_id", type="text", source="event.id"),),
        version=version,
        extra=extra,
        content=payload,
    )


def _nested(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


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
