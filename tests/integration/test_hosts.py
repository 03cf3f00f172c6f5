"""A URL of several servers leads to the one that can be written to, however silent the others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.base.errors import StorageUnavailable
from gateway.ledger.connection import connect, open_pool
from tests.support.ports import free_port
from tests.torture.wire import HOST, Wire


@asynccontextmanager
async def wires(url: str, n: int) -> AsyncIterator[list[Wire]]:
    """Ways to the server over TCP."""
    options = parse_qs(urlsplit(url).query)
    socket = Path(options["host"][0]) / f".s.PGSQL.{options['port'][0]}"
    found = [Wire(socket) for _ in range(n)]
    try:
        for wire in found:
            await wire.open()
        yield found
    finally:
        for wire in found:
            await wire.close()


def url_of(database_url: str, *ports: int) -> str:
    hosts = ",".join(f"{HOST}:{port}" for port in ports)
    return f"postgresql://gateway@{hosts}{urlsplit(database_url).path}?sslmode=disable"


async def test_a_first_host_that_is_silent_does_not_keep_from_the_second(database_url: str) -> None:
    """As one behind a cut network is: no answer, and no refusal either."""
    async with wires(database_url, 2) as [silent, open_wire]:
        silent.hang()
        url = url_of(database_url, silent.port, open_wire.port)
        connection = await connect(url, name="test")
        assert await connection.fetchval("select 1") == 1
        await connection.close()
        pool = await open_pool(url, name="test", size=2, command_timeout_s=5)
        assert await pool.fetchval("select 1") == 1
        await pool.close()


async def test_a_host_that_refuses_is_passed_over_and_an_end_to_all_is_said(
    database_url: str,
) -> None:
    async with wires(database_url, 1) as [only]:
        connection = await connect(url_of(database_url, free_port(), only.port), name="test")
        await connection.close()
        one, two = free_port(), free_port()
        with pytest.raises(StorageUnavailable, match="cannot be reached") as refusal:
            await connect(url_of(database_url, one, two), name="test")
        for port in (one, two):
            where = f"{HOST}:{port} (GATEWAY_DATABASE_URL)"
            assert f"{where} refused the connection" in str(refusal.value)


async def test_a_host_that_is_silent_is_told_from_one_that_refuses(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.connection.CONNECT_TIMEOUT_S", 0.2)
    async with wires(database_url, 1) as [silent]:
        silent.hang()
        with pytest.raises(StorageUnavailable) as refusal:
            await connect(url_of(database_url, silent.port), name="test")
    where = f"{HOST}:{silent.port} (GATEWAY_DATABASE_URL)"
    assert f"{where} did not answer within 0.2 s" in str(refusal.value)


async def test_a_host_that_cannot_be_written_to_is_not_taken(database_url: str) -> None:
    """Nobody has to say so in the URL: the gateway has no use for a standby."""
    async with wires(database_url, 2) as [first, second]:
        url = url_of(database_url, first.port, second.port)
        with pytest.raises(StorageUnavailable, match="read-write"):
            await connect(url, name="test", default_transaction_read_only="on")
        standby = await connect(
            f"{url}&target_session_attrs=read-only", name="test", default_transaction_read_only="on"
        )
        await standby.close()
