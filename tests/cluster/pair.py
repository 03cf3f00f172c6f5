"""A primary with its standby, and who is which just now."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import asyncpg

from gateway.dev.embedded.engines import DATABASE, PORT, USER
from gateway.ledger.connection import Connection
from tests.cluster.engines import Node
from tests.support.waiting import until
from tests.torture.stage import CONNECT_S, READY_S

STREAMING: Final = "select count(*) from pg_stat_replication where state = 'streaming'"
IS_WAITED_FOR: Final = "select count(*) from pg_stat_replication where sync_state = 'sync'"


class Pair:
    """What an operator does with them."""

    def __init__(self, primary: Node, standby: Node, *, is_synchronous: bool) -> None:
        self.primary, self.standby = primary, standby
        self.is_synchronous = is_synchronous
        hosts = ",".join(f"{node.host.address}:{PORT}" for node in (primary, standby))
        self.url = f"postgresql://{USER}@{hosts}/{DATABASE}?sslmode=disable"
        """Of both: the gateway takes the one that it can write to."""
        self._turn = threading.Lock()

    async def start(self) -> None:
        await self.order(self.primary.start)
        await self.restore_standby()

    async def stop(self) -> None:
        for node in (self.standby, self.primary):
            await self.order(node.kill)

    async def order(self, work: Callable[[], None]) -> None:
        """Starts or stops an engine. One at a time: a cancelled caller leaves its thread behind."""

        def take_turn() -> None:
            with self._turn:
                work()

        await asyncio.to_thread(take_turn)

    async def promote(self) -> None:
        """The standby takes over, alone: it waits for nobody until it has a standby itself."""
        await execute(self.standby, "alter system set synchronous_standby_names = ''")
        await execute(self.standby, "select pg_reload_conf()")
        await execute(self.standby, "select pg_promote()")
        self.primary, self.standby = self.standby, self.primary

    async def restore_standby(self) -> None:
        """The other one becomes a copy of the primary; then commits wait for it, if they are to."""
        await self.order(lambda: self.standby.follow(self.primary))
        await until(lambda: fetch(self.primary, STREAMING))
        if not self.is_synchronous:
            return
        names = f"{self.primary.standby_name}, {self.standby.standby_name}"
        await execute(self.primary, f"alter system set synchronous_standby_names = {names}")
        await execute(self.primary, "select pg_reload_conf()")
        await until(lambda: fetch(self.primary, IS_WAITED_FOR))


async def connect_to(node: Node) -> Connection:
    """Past the network."""
    return await asyncpg.connect(
        node.url,
        timeout=CONNECT_S,
        command_timeout=READY_S,
        server_settings={"application_name": "cluster"},
    )


async def execute(node: Node, statement: str) -> None:
    connection = await connect_to(node)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(node: Node, query: str) -> object:
    connection = await connect_to(node)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()
