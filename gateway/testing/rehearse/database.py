"""The temporary database of a rehearsal, fresh for every schedule, and the connections to it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from gateway.ledger.claims import Claimer
from gateway.ledger.connection import Connection, Pool, connect, open_pool, users_search_path
from gateway.ledger.sessions import Sessions
from gateway.testing.rehearse.made_up import MadeUp
from gateway.testing.rehearse.tables import State, Table, compare, read_catalogue, read_state
from gateway.testing.throwaway import Databases
from gateway.worker.upsert import quote

LONGEST_S: Final = 10.0
LEDGER_CONNECTIONS: Final = 4

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
class RehearsalDatabase:
    """One database and the connections to it."""

    url: str
    control: Connection
    """For setup and for queries by the rehearsal; it runs one query at a time."""
    ledger: Pool
    work: Sessions
    claimer: Claimer
    tables: tuple[Table, ...]
    pristine: State
    """The state that the schema creates."""
    started_at: datetime

    async def state(self) -> State:
        """Return the current contents of the user's tables."""
        return await read_state(self.control, self.tables, self.started_at)

    async def fill(self, rows: Sequence[MadeUp]) -> None:
        """Insert rows."""
        for row in rows:
            await self.control.execute(row.sql, *row.arguments)

    async def skew(self) -> None:
        """Advance the sequences, so that numbers from them differ from those of an earlier run."""
        with suppress(asyncpg.PostgresError):  # a sequence that has reached its end
            await self.control.execute(_SKEW)

    async def is_swept(self) -> bool:
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
            return not compare(self.tables, self.pristine, await self.state(), {})
        return True

    async def strike(self) -> None:
        """Close the connections."""
        await self.claimer.stop()
        await self.work.close()
        self.ledger.terminate()
        await self.control.close()

    def _is_changed(self, table: Table, now: State) -> bool:
        label = table.label
        return bool(compare([table], {label: self.pristine[label]}, {label: now[label]}, {}))

    def _put_back(self, changed: Sequence[int], before: str = "") -> str:
        if not changed:
            return ""
        sql = before
        for n in changed:
            table = self.tables[n]
            sql += f"delete from {table.source};"  # noqa: S608 (quoted)
            if self.pristine[table.label]:
                columns = ", ".join(quote(c.name) for c in table.columns if not c.is_computed)
                sql += (
                    f"insert into {table.source} ({columns}) overriding system value"  # noqa: S608
                    f" select {columns} from gateway.kept_{n};"
                )
        return sql


async def build_scene(databases: Databases, started_at: datetime) -> RehearsalDatabase:
    """Create a database from the template, and connect to it."""
    url = await databases.clone()
    control = await connect(url, name="gateway rehearse", command_timeout_s=LONGEST_S)
    tables = await read_catalogue(control)
    pristine = await read_state(control, tables, started_at)
    await _keep_filled(control, tables, pristine)
    claimer = Claimer(url, on_accepted=_nobody)
    await claimer.start()
    return RehearsalDatabase(
        url=url,
        control=control,
        ledger=await open_pool(
            url,
            name="gateway rehearse ledger",
            size=LEDGER_CONNECTIONS,
            command_timeout_s=LONGEST_S,
        ),
        work=Sessions(
            url, name="gateway rehearse handlers", search_path=await users_search_path(control)
        ),
        claimer=claimer,
        tables=tables,
        pristine=pristine,
        started_at=started_at,
    )


async def _keep_filled(control: Connection, tables: Sequence[Table], pristine: State) -> None:
    """Copy the tables that the schema fills."""
    for n, table in enumerate(tables):
        if pristine[table.label]:
            await control.execute(f"create table gateway.kept_{n} as table {table.source}")


def _nobody(_: Any) -> None:
    """Ignore the accepted deliveries: a rehearsal sends no wake-up."""
