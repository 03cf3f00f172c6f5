"""The temporary database of a rehearsal: its tables, their contents, and how two states differ."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import orjson

from gateway.ledger.connection import Connection, connect
from gateway.testing.throwaway import Databases, LedgerClients
from gateway.worker.statements import quote

JOBS: Final = "jobs of ctx.publish"
NOW: Final = "now"
AROUND_NOW: Final = timedelta(days=1)
"""Events of a rehearsal are older than this, so a time this close was taken by the run itself."""

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")
_VOLATILE_DEFAULT: Final = re.compile(
    r"nextval\(|uuid|random\(|txid_|pg_current_xact|backend_pid", re.IGNORECASE
)
"""Matches defaults that differ in every run.

Times are not included: all times of the rehearsal count as equal (`is_recent`), and a handler that
sets such a column itself may set it wrongly.
"""

_CATALOGUE: Final = """
select n.nspname as schema, c.relname as name,
       coalesce((select array_agg(a.attname order by k.n)
                 from pg_index i
                 cross join unnest(i.indkey::int2[]) with ordinality as k (attnum, n)
                 join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
                 where i.indrelid = c.oid and i.indisprimary), '{}')::text[] as key,
       coalesce((select json_agg(json_build_object(
                     'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
                     'category', t.typcategory, 'is_required', a.attnotnull,
                     'is_computed', a.attgenerated <> '',
                     'first_label', (select enumlabel from pg_enum e where e.enumtypid = t.oid
                                     order by enumsortorder limit 1),
                     'default', case when a.attidentity <> '' then 'nextval()'
                                     else pg_get_expr(d.adbin, d.adrelid) end) order by a.attnum)
                 from pg_attribute a
                 join pg_type t on t.oid = a.atttypid
                 left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
                 where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), '[]')::text
           as columns
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition
  and n.nspname not in ('gateway', 'pg_catalog', 'information_schema')
  and n.nspname not like 'pg\\_%'
  and not exists (select from pg_depend e where e.classid = 'pg_class'::regclass
                  and e.objid = c.oid and e.deptype = 'e')
order by n.nspname, c.relname
"""
_JOBS: Final = """
select route, event_id, type, convert_from(body, 'utf8')::json as payload
from gateway.events where provider = 'publish'
"""

Row = Mapping[str, Any]
"""The values by column.

A JSON object is flattened by its paths, so that its fields are compared one by one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    category: str
    """The category of the type, as in `pg_type.typcategory`."""
    is_required: bool
    is_computed: bool
    first_label: str | None
    """The first label of an enum."""
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of the user's."""

    schema: str
    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def volatile(self) -> frozenset[str]:
        """The columns whose default the database fills with another value each time."""
        return frozenset(
            c.name for c in self.columns if c.default and _VOLATILE_DEFAULT.search(c.default)
        )

    @property
    def label(self) -> str:
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"

    @property
    def source(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row that exists only before, only after, or in both states with different values."""

    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The differences in one table."""

    table: str
    key: tuple[str, ...]
    changes: tuple[Change, ...]


State = Mapping[str, Sequence[Row]]
Masks = Mapping[str, frozenset[str]]
"""By table: the columns whose values are ignored."""


async def read_catalogue(connection: Connection) -> tuple[Table, ...]:
    """Return the user's tables: all except those of the gateway, the server and extensions."""
    rows = await connection.fetch(_CATALOGUE)
    return tuple(
        Table(
            schema=row["schema"],
            name=row["name"],
            key=tuple(row["key"]),
            columns=tuple(Column(**column) for column in orjson.loads(row["columns"])),
        )
        for row in rows
    )


async def read_state(
    connection: Connection, tables: Sequence[Table], started_at: datetime
) -> State:
    """Read all rows of the user's tables, and the published jobs, in one query."""
    parts = [
        f"select {n} as n, row_to_json(t)::text as row from {table.source} t"  # noqa: S608 (quoted)
        for n, table in enumerate(tables)
    ]
    parts.append(f"select -1, row_to_json(t)::text from ({_JOBS}) t")  # noqa: S608 (our own)
    state: dict[str, list[Row]] = {table.label: [] for table in tables}
    state[JOBS] = []
    for found in await connection.fetch(" union all ".join(parts)):
        label = JOBS if found["n"] < 0 else tables[found["n"]].label
        state[label].append(dict(_laid_out(orjson.loads(found["row"]), started_at)))
    return state


def compare(tables: Sequence[Table], one: State, other: State, masks: Masks) -> list[Difference]:
    """Return the differences between two states, without the masked columns."""
    keys = {table.label: table.key for table in tables}
    differences = []
    for label in one:
        mask = masks.get(label, frozenset())
        key = tuple(c for c in keys.get(label, ("route", "type")) if c not in mask)
        before, after = masked(one[label], mask), masked(other[label], mask)
        if changes := _changes(before, after, key):
            differences.append(Difference(table=label, key=key, changes=tuple(changes)))
    return differences


def learn(tables: Sequence[Table], one: State, other: State) -> Masks:
    """Return the columns that differ between two identical runs in two identical databases."""
    masks: dict[str, frozenset[str]] = {t.label: t.volatile for t in tables}
    for label in one:
        columns = {column for row in (*one[label], *other[label]) for column in row}
        differing = {c for c in columns if _values(one[label], c) != _values(other[label], c)}
        masks[label] = masks.get(label, frozenset()) | differing
    return masks


def merge(masks: Iterable[Masks]) -> Masks:
    """Combine the masks: a column is masked if any of them masks it."""
    merged: dict[str, frozenset[str]] = {}
    for mask in masks:
        for label, columns in mask.items():
            merged[label] = merged.get(label, frozenset()) | columns
    return merged


def _values(rows: Sequence[Row], column: str) -> Counter[bytes]:
    return Counter(_canonical(row.get(column)) for row in rows)


def masked(rows: Sequence[Row], mask: frozenset[str]) -> list[Row]:
    """Return the rows without the masked columns."""
    return [{column: row[column] for column in row if column not in mask} for row in rows]


def _changes(one: Sequence[Row], other: Sequence[Row], key: tuple[str, ...]) -> list[Change]:
    before, after = _by_content(one), _by_content(other)
    gone = [row for content, rows in before.items() for row in rows[len(after.get(content, ())) :]]
    new = [row for content, rows in after.items() for row in rows[len(before.get(content, ())) :]]
    changes = []
    for row in gone:
        same = next((r for r in new if _is_same(row, r, key)), None)
        if same is not None:
            new.remove(same)
        changes.append(Change(before=row, after=same))
    return changes + [Change(before=None, after=row) for row in new]


def _is_same(row: Row, other: Row, key: tuple[str, ...]) -> bool:
    """Return whether one row became the other: same key, or more than half of the columns equal."""
    if key:
        return all(row.get(column) == other.get(column) for column in key)
    equal = [column for column in row if row[column] == other.get(column)]
    return len(equal) * 2 > len(row)


def _by_content(rows: Sequence[Row]) -> dict[bytes, list[Row]]:
    found: dict[bytes, list[Row]] = {}
    for row in rows:
        found.setdefault(_canonical(row), []).append(row)
    return found


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _laid_out(row: Row, started_at: datetime, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for column, value in row.items():
        if isinstance(value, dict) and value:
            yield from _laid_out(value, started_at, f"{prefix}{column}.")
        else:
            yield prefix + column, NOW if is_recent(value, started_at) else value


def is_recent(value: Any, started_at: datetime) -> bool:
    """Return whether the value is a time that was taken during the rehearsal."""
    moment = _moment(value)
    return moment is not None and abs(moment - started_at) <= AROUND_NOW


def _moment(value: Any) -> datetime | None:
    try:
        if isinstance(value, str) and _TIME.fullmatch(value):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if value > 1e11 else value  # in milliseconds
            return datetime.fromtimestamp(seconds, UTC) if seconds > 1e9 else None
    except (ValueError, OverflowError, OSError):
        return None
    return None


LONGEST_S: Final = 10.0

_SKEW: Final = """
select setval(s.oid, coalesce(pg_sequence_last_value(s.oid), 0) + 1000)
from pg_class s join pg_namespace n on n.oid = s.relnamespace
where s.relkind = 'S' and n.nspname not like 'pg\\_%'
"""
_WITHOUT_TRIGGERS: Final = "set local session_replication_role = replica;"
"""Disables triggers and foreign keys: the restored rows already show the effect of the triggers."""

_LEDGER: Final = (
    *("processed_events", "payloads", "deliveries", "attempts"),
    *("effects", "once_keys", "audit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventedRow:
    """A row to insert into a table."""

    table: str
    sql: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalDatabase:
    """One database and the connections to it."""

    url: str
    control: Connection
    """For setup and for queries by the rehearsal; it runs one query at a time."""
    clients: LedgerClients
    tables: tuple[Table, ...]
    initial: State
    """The state that the schema creates."""
    started_at: datetime

    async def state(self) -> State:
        """Return the current contents of the user's tables."""
        return await read_state(self.control, self.tables, self.started_at)

    async def fill(self, rows: Sequence[InventedRow]) -> None:
        """Insert rows."""
        for row in rows:
            await self.control.execute(row.sql, *row.arguments)

    async def skew(self) -> None:
        """Advance the sequences, so that numbers from them differ from those of an earlier run."""
        with suppress(asyncpg.PostgresError):  # a sequence that has reached its end
            await self.control.execute(_SKEW)

    async def reset(self) -> bool:
        """Restore the initial state, and return whether that was possible.

        It is a hundred times faster than creating another database.
        """
        now = await self.state()
        changed = [n for n, table in enumerate(self.tables) if self._is_changed(table, now)]
        clear = "".join(f"delete from gateway.{name};" for name in _LEDGER)  # noqa: S608 (our own)
        try:
            await self.control.execute(clear + self._put_back(changed, _WITHOUT_TRIGGERS))
        except asyncpg.InsufficientPrivilegeError:
            with suppress(asyncpg.PostgresError):  # without replica mode, table order matters
                truncate = "".join(f"truncate {self.tables[n].source} cascade;" for n in changed)
                await self.control.execute(clear + truncate + self._put_back(changed))
            return not compare(self.tables, self.initial, await self.state(), {})
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self.clients.close()
        await self.control.close()

    def _is_changed(self, table: Table, now: State) -> bool:
        label = table.label
        return bool(compare([table], {label: self.initial[label]}, {label: now[label]}, {}))

    def _put_back(self, changed: Sequence[int], before: str = "") -> str:
        if not changed:
            return ""
        sql = before
        for n in changed:
            table = self.tables[n]
            sql += f"delete from {table.source};"  # noqa: S608 (quoted)
            if self.initial[table.label]:
                columns = ", ".join(quote(c.name) for c in table.columns if not c.is_computed)
                sql += (
                    f"insert into {table.source} ({columns}) overriding system value"  # noqa: S608
                    f" select {columns} from gateway.kept_{n};"
                )
        return sql


async def create_database(databases: Databases, started_at: datetime) -> RehearsalDatabase:
    """Create a database from the template, and connect to it."""
    url = await databases.clone()
    control = await connect(url, name="gateway rehearse", command_timeout_s=LONGEST_S)
    tables = await read_catalogue(control)
    initial = await read_state(control, tables, started_at)
    await _keep_filled(control, tables, initial)
    clients = await LedgerClients.open(url, "gateway rehearse", command_timeout_s=LONGEST_S)
    return RehearsalDatabase(
        url=url,
        control=control,
        clients=clients,
        tables=tables,
        initial=initial,
        started_at=started_at,
    )


async def _keep_filled(control: Connection, tables: Sequence[Table], initial: State) -> None:
    """Copy the tables that the schema fills."""
    for n, table in enumerate(tables):
        if initial[table.label]:
            await control.execute(f"create table gateway.kept_{n} as table {table.source}")
