"""Writes gateway/ledger/schema.sql, the schema as the migrations leave it: `make docs`.

Tables, indexes and comments are read from the catalog of a migrated Postgres; functions and views
are the text of their last definition in the migrations, with the comment above it. The tables of
single days are left out: `gateway.make_partitions` creates them.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg

from gateway.ledger.connection import Connection
from gateway.ledger.migrate import migrate, read_migrations
from tests.safeguards import PART
from tests.support.databases import on_database, run_sql
from tests.support.schema import temporary_postgres

FILE: Final = Path(__file__).parents[1] / "gateway" / "ledger" / "schema.sql"
HEAD: Final = """-- The schema of the ledger, version {version}, as the migrations leave it.
-- `make docs` writes this file, and a test compares it with what the migrations produce. To change
-- the schema, add a file to migrations/.
"""

OBJECTS: Final = """
select t.oid, 'domain' as kind, t.typname::text as name, null as parent
from pg_type t
where t.typnamespace = 'gateway'::regnamespace and t.typtype = 'd'
union all
select p.oid, 'function', p.proname::text, null
from pg_proc p
where p.pronamespace = 'gateway'::regnamespace
union all
select c.oid, case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end,
       c.relname::text, i.inhparent::regclass::text
from pg_class c
left join pg_inherits i on i.inhrelid = c.oid
where c.relnamespace = 'gateway'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
  and c.relname !~ '_[0-9]{8}$'  -- the table of a day
  and not exists (  -- the sequence of an identity column
    select from pg_depend d where d.objid = c.oid and d.deptype = 'i' and c.relkind = 'S')
order by 1
"""
"""In the order in which they were created, which is also one in which they can be created."""

DOMAIN: Final = """
select format_type(t.typbasetype, t.typtypmod) || chr(10)
       || '    ' || pg_get_constraintdef(c.oid, true)
from pg_type t join pg_constraint c on c.contypid = t.oid
where t.oid = $1
"""

COLUMNS: Final = """
select a.attname::text as name, format_type(a.atttypid, a.atttypmod) as type,
       a.attnotnull as required, a.attidentity = 'a' as counts,
       pg_get_expr(d.adbin, d.adrelid, true) as default,
       col_description(a.attrelid, a.attnum) as comment,
       case when a.attstorage <> t.typstorage then a.attstorage::text end as storage
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""

CONSTRAINTS: Final = """
select conname::text as name, pg_get_constraintdef(oid, true) as text
from pg_constraint
where conrelid = $1 and contype in ('p', 'u', 'c', 'f', 'x')
order by contype = 'p' desc, contype = 'u' desc, conname
"""

INDEXES: Final = """
select pg_get_indexdef(i.indexrelid, 0, true)
from pg_index i
where i.indrelid = $1 and not exists (select from pg_constraint c where c.conindid = i.indexrelid)
order by i.indexrelid
"""

TABLE: Final = """
select pg_get_partkeydef(oid) as partitioned, array_to_string(reloptions, ', ') as options,
       obj_description(oid, 'pg_class') as comment
from pg_class
where oid = $1
"""

FUNCTION: Final = """
select obj_description(oid, 'pg_proc') as comment,
       pg_get_function_identity_arguments(oid) as arguments,
       not has_function_privilege('public', oid, 'execute') as is_revoked
from pg_proc
where oid = $1
"""

STORAGE: Final = {"p": "plain", "e": "external", "m": "main", "x": "extended"}
NAMED_BY_POSTGRES: Final = re.compile(r".*_(?:pkey|key|check)")


async def render(connection: Connection) -> str:
    """Return the schema of a migrated ledger as SQL that would create it."""
    await connection.execute("set search_path = ''")  # so that every name is qualified
    parts = [HEAD.format(version=read_migrations()[-1].version)]
    for row in await connection.fetch(OBJECTS):
        name = f"gateway.{row['name']}"
        match row["kind"]:
            case "domain":
                domain = _plain(await connection.fetchval(DOMAIN, row["oid"]))
                parts.append(f"create domain {name} as {domain};\n")
            case "sequence":
                parts.append(f"create sequence {name};\n")
            case "table" if row["parent"]:
                parts.append(await _partition(connection, row["oid"], name, row["parent"]))
            case "table":
                parts.append(await _table(connection, row["oid"], name))
            case "view":
                parts.append(await _view(connection, row["oid"], name))
            case "function":
                parts.append(await _function(connection, row["oid"], name))
    return "\n".join(parts)


async def _partition(connection: Connection, oid: int, name: str, parent: str) -> str:
    [table] = await connection.fetch(TABLE, oid)
    return f"create table {name} partition of {parent} default{_with(table['options'])};\n"


async def _table(connection: Connection, oid: int, name: str) -> str:
    columns = await connection.fetch(COLUMNS, oid)
    constraints = await connection.fetch(CONSTRAINTS, oid)
    [table] = await connection.fetch(TABLE, oid)
    lines = [
        *_columns(columns),
        *(
            ("" if NAMED_BY_POSTGRES.fullmatch(c["name"]) else f"constraint {c['name']} ")
            + _plain(c["text"])
            for c in constraints
        ),
    ]
    body = ",\n".join(f"    {line}" for line in lines)
    partitioned = f" partition by {_plain(table['partitioned'])}" if table["partitioned"] else ""
    text = f"create table {name} (\n{body}\n){partitioned}{_with(table['options'])};\n"
    text += _comment("table", name, table["comment"])
    for column in columns:
        text += _comment("column", f"{name}.{column['name']}", column["comment"])
        if column["storage"]:
            storage = STORAGE[column["storage"]]
            text += f"alter table {name} alter column {column['name']} set storage {storage};\n"
    for [index] in await connection.fetch(INDEXES, oid):
        text += _plain(index).replace(" using btree", "").replace(" on only ", " on ") + ";\n"
    return text


def _columns(columns: list[asyncpg.Record]) -> Iterator[str]:
    types = [c["type"].replace("timestamp with time zone", "timestamptz") for c in columns]
    name_width = max(len(c["name"]) for c in columns)
    type_width = max(len(type) for type in types)
    for column, type in zip(columns, types, strict=True):
        rest = "not null" if column["required"] else ""
        if column["default"] is not None:
            rest += f" default {_plain(column['default'])}"
        if column["counts"]:
            rest += " generated always as identity"
        yield f"{column['name']:{name_width}} {type:{type_width}} {rest.strip()}".rstrip()


async def _view(connection: Connection, oid: int, name: str) -> str:
    [table] = await connection.fetch(TABLE, oid)
    text = _last_definition("view", name) + _comment("view", name, table["comment"])
    for column in await connection.fetch(COLUMNS, oid):
        text += _comment("column", f"{name}.{column['name']}", column["comment"])
    return text


async def _function(connection: Connection, oid: int, name: str) -> str:
    [function] = await connection.fetch(FUNCTION, oid)
    text = _last_definition("function", name) + _comment("function", name, function["comment"])
    if function["is_revoked"]:
        text += f"revoke execute on function {name}({function['arguments']}) from public;\n"
    return text


def _last_definition(kind: str, name: str) -> str:
    """Return the text of the newest migration that creates it, with the comment above."""
    created = rf"^(?:--[^\n]*\n)*create (?:or replace )?{kind} {re.escape(name)}\b{PART}"
    for migration in reversed(read_migrations()):
        found = list(re.finditer(created, migration.sql, re.MULTILINE | re.DOTALL))
        if found:
            return found[-1][0].replace("create or replace", "create", 1) + "\n"
    raise LookupError(f"no migration creates {kind} {name}")


def _comment(kind: str, name: str, text: str | None) -> str:
    if text is None:
        return ""
    escaped = text.replace("'", "''")
    return f"comment on {kind} {name} is\n    '{escaped}';\n"


def _plain(sql: str) -> str:
    """Write keywords in small letters, as everywhere else, and constants without their type."""
    constant_or_keyword = r"('(?:[^']|'')*')(?:::text)?|\b[A-Z]+\b"
    return re.sub(constant_or_keyword, lambda word: word[1] or word[0].lower(), sql)


def _with(options: str | None) -> str:
    return f" with ({options})" if options else ""


async def _write() -> None:
    with temporary_postgres() as url:
        await run_sql(url, "create database ledger")
        connection = await asyncpg.connect(on_database(url, "ledger"))
        try:
            await migrate(connection, ())
            FILE.write_text(await render(connection), encoding="utf-8")
        finally:
            await connection.close()


if __name__ == "__main__":
    asyncio.run(_write())
