"""Known secrets of every kind, and the search for each of them in whatever was written."""

import base64
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import asyncpg
import redis.asyncio

SHORTEST: Final = 8


def _forms(secret: str) -> Iterator[bytes]:
    """As it could be written: as it is, encoded, escaped; also as a part of something longer."""
    raw = secret.encode()
    yield raw
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    yield quote(secret, safe="").encode()
    yield quote(secret).encode()
    yield repr(secret)[1:-1].encode()
    yield repr(raw)[2:-1].encode()
    yield json.dumps(secret)[1:-1].encode()
    yield json.dumps(secret, ensure_ascii=False)[1:-1].encode()
    for shift in range(3):  # base64 of what it stands in: without the ends, which depend on that
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(shift) + raw)[4:-4]


class Watched:
    """Secrets by what they are for."""

    def __init__(self, **secrets: str) -> None:
        self.secrets = secrets
        self._forms = {
            name: {form for form in _forms(secret) if len(form) >= SHORTEST}
            for name, secret in secrets.items()
        }

    def found_in(self, written: str | bytes) -> list[str]:
        """The names of those that stand in it."""
        content = (
            written.encode("utf-8", "surrogateescape") if isinstance(written, str) else written
        )
        return [
            name for name, forms in self._forms.items() if any(form in content for form in forms)
        ]


def files_below(directory: Path) -> Iterator[Path]:
    """All that can be read, without links."""
    for folder, _, names in os.walk(directory):
        for name in names:
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink():
                yield file


def is_private(file: Path) -> bool:
    """Whether only its owner can read it."""
    return not stat.S_IMODE(file.stat().st_mode) & 0o077


async def dump_postgres(url: str) -> bytes:
    """Every row of every table, and what the server tells of its sessions."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "select format('%I.%I', schemaname, tablename) as name from pg_tables"
            " where schemaname not in ('pg_catalog', 'information_schema')"
        )
        rows = [
            row["text"]
            for table in [*(t["name"] for t in tables), "pg_stat_activity", "pg_settings"]
            for row in await connection.fetch(f"select t::text as text from {table} t")  # noqa: S608
        ]
        bodies = await connection.fetch("select body from gateway.payloads")
    finally:
        await connection.close()
    return b"\n".join([*(row.encode() for row in rows), *(b["body"] or b"" for b in bodies)])


async def dump_redis(url: str) -> bytes:
    """Every key with its value."""
    client = redis.asyncio.Redis.from_url(url)
    try:
        keys = [key async for key in client.scan_iter()]
        values = [await client.dump(key) or b"" for key in keys]
        clients = await client.execute_command("CLIENT", "LIST")
    finally:
        await client.aclose()
    return b"\n".join([*keys, *values, clients])


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, more = [], [pid]
    while more:
        found += more
        more = [child for child, parent in parents.items() if parent in more]
    return found


def command_lines(pids: Iterable[int]) -> bytes:
    """As `ps` shows them."""
    return b"\n".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


def environment(pid: int) -> bytes:
    """What a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes()
