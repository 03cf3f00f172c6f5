"""Keys of encrypted routes, and a look for what must not be readable anywhere."""

import os
from collections.abc import Iterable

import asyncpg

from gateway.base.secrets import Secret
from gateway.ledger.encryption import EncryptionKeys
from gateway.privacy.encryption import KeyRing


def make_key() -> Secret:
    return Secret(os.urandom(32))


def make_vault(*keys: Secret, routes: Iterable[str] = ("stripe",)) -> EncryptionKeys:
    """Under these keys, or one made up."""
    return EncryptionKeys(ring=KeyRing(keys or (make_key(),)), routes=frozenset(routes))


async def find_in_ledger(url: str, *words: str) -> list[str]:
    """Tables of the gateway's and rows in which one of the words is to be read: as text, or in
    the bytes of a column."""
    connection = await asyncpg.connect(url)
    found: list[str] = []
    try:
        tables = await connection.fetch(
            "select oid::regclass::text as name from pg_class"
            " where relnamespace = 'gateway'::regnamespace and relkind in ('r', 'p')"
        )
        assert len(tables) > 10
        for table in tables:
            for word in words:
                rows = await connection.fetch(
                    f"select t::text as row from {table['name']} t"  # noqa: S608 (of our own)
                    " where t::text ilike '%' || $1 || '%'"
                    "    or t::text like '%' || encode(convert_to($1, 'UTF8'), 'hex') || '%'",
                    word,
                )
                found += [f"{table['name']}: {row['row'][:300]}" for row in rows]
    finally:
        await connection.close()
    return found
