"""The throwaway database of a rehearsal: fresh for every schedule, and the connections to it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from gateway.ledger.claims import Claimer
from gateway.ledger.connection import Connection, Pool, connect, users_search_path
from gateway.ledger.sessions import Session, Sessions
from gateway.run.upsert import quote
from gateway.testing.rehearse.guard import ours
from gateway.testing.rehearse.made_up import MadeUp
from gateway.testing.rehearse.tables import State, Table, compare, read_catalogue, read_state
from gateway.testing.throwaway import Throwaway

LONGEST_S: Final = 10.0
LEDGER_CONNECTIONS: Final = 4

_SKEW: Final = """
select setval(s.oid, coalesce(pg_sequence_last_value(s.oid), 0) + 1000)
from pg_class s join pg_namespace n on n.oid = s.relnamespace
where s.relkind = 'S' and n.nspname not like 'pg\\_%'
"""
_WITHOUT_TRIGGERS: Final = "set local session_replication_role = replica;"
"""And without foreign keys: the rows that were there are as those have left them."""

_LEDGER: Final = (
    *("processed_events", "payloads", "deliveries", "attempts"),
    *("effects", "once_keys", "audit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One database and the connections to it."""

    url: str
    control: Connection
    """For arranging and looking; one question at a time."""
    ledger: Pool
    work: Sessions
    claimer: Claimer
    tables: tuple[Table, ...]
    pristine: State
    """As the schema leaves it."""
    started_at: datetime

    async def state(self) -> State:
        """What is in the user's tables now."""
        return await read_state(self.control, self.tables, self.started_at)

    async def fill(self, rows: Sequence[MadeUp]) -> None:
        """Puts rows there."""
        for row in rows:
            await self.control.execute(row.sql, *row.arguments)

    async def skew(self) -> None:
        """Moves the sequences on, so that numbers from them differ from those before."""
        with suppress(asyncpg.PostgresError):  # one that has come to its end
            await self.control.execute(_SKEW)

    async def is_swept(self) -> bool:
        """Puts everything back as it was: a hundred times faster than another database. Returns
        whether that was possible."""
        now = await self.state()
        changed = [n for n, table in enumerate(self.tables) if self._is_changed(table, now)]
        clear = "".join(f"delete from gateway.{name};" for name in _LEDGER)  # noqa: S608 (our own)
        try:
            await self.control.execute(clear + self._put_back(changed, _WITHOUT_TRIGGERS))
        except asyncpg.InsufficientPrivilegeError:
            with suppress(asyncpg.PostgresError):  # the order of the tables matters now
                truncate = "".join(f"truncate {self.tables[n].source} cascade;" for n in changed)
                await self.control.execute(clear + truncate + self._put_back(changed))
            return not compare(self.tables, self.pristine, await self.state(), {})
        return True

    async def strike(self) -> None:
        """Ends the connections."""
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


class _WorkSessions(Sessions):
    """Handlers cause these connections, and yet they are the gateway's own."""

    async def take(self) -> Session:
        with ours():
            return await super().take()


async def build_scene(throwaway: Throwaway, started_at: datetime) -> Scene:
    """A database as the schema makes it."""
    url = await throwaway.clone()
    control = await connect(url, name="gateway rehearse", command_timeout_s=LONGEST_S)
    tables = await read_catalogue(control)
    pristine = await read_state(control, tables, started_at)
    await _keep_filled(control, tables, pristine)
    claimer = Claimer(url, on_accepted=_nobody)
    await claimer.start()
    return Scene(
        url=url,
        control=control,
        ledger=await asyncpg.create_pool(
            url,
            min_size=0,
            max_size=LEDGER_CONNECTIONS,
            connect=_connect,
            reset=_nothing_to_reset,
            command_timeout=LONGEST_S,
            server_settings={"application_name": "gateway rehearse ledger"},
        ),
        work=_WorkSessions(
            url, name="gateway rehearse handlers", search_path=await users_search_path(control)
        ),
        claimer=claimer,
        tables=tables,
        pristine=pristine,
        started_at=started_at,
    )


async def _keep_filled(control: Connection, tables: Sequence[Table], pristine: State) -> None:
    """Copies of the tables that the schema fills."""
    for n, table in enumerate(tables):
        if pristine[table.label]:
            await control.execute(f"create table gateway.kept_{n} as table {table.source}")


async def _connect(*args: Any, **options: Any) -> Connection:
    with ours():
        connection: Connection = await asyncpg.connect(*args, **options)
        return connection


async def _nothing_to_reset(_: Connection) -> None:
    """These connections run only our own statements."""


def _nobody(_: Any) -> None:
    """Nobody waits to be told of deliveries."""
