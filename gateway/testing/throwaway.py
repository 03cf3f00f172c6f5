"""Temporary databases with the user's schema, and connections to run handlers on them."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import httpx

from gateway.base.errors import CommandFailed, EngineFailed
from gateway.base.secrets import Secret
from gateway.config.project import Project
from gateway.dev.embedded import Postgres
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import (
    Connection,
    Pool,
    connect,
    describe,
    open_pool,
    users_search_path,
)
from gateway.ledger.encryption import OPEN
from gateway.ledger.migrate import SchemaFile, migrate
from gateway.ledger.sessions import Sessions
from gateway.worker.codec import LeaseCodec
from gateway.worker.resources import WorkerContext

PREFIX: Final = "gateway_test_"
VARIABLE: Final = "GATEWAY_TEST_DATABASE_URL"
FOLDER_PREFIX: Final = "gateway-throwaway-"
ABANDONED_S: Final = 300.0
"""Minimum age of an abandoned folder.

A younger one may belong to a process that is about to lock it.
"""
FORGOTTEN_S: Final = 6 * 3600.0
"""Minimum age of an abandoned database.

A younger one may be the template of tests that still run.
"""
_ABANDONED: Final = """
select datname from pg_database d
where datdba = (select oid from pg_roles where rolname = current_user)
  and substring(datname from $1)::numeric < extract(epoch from now()) - $2::float8
  and not exists (select from pg_stat_activity a where a.datid = d.oid)
"""
MEMORY: Final = Path("/dev/shm")  # noqa: S108 (mkdtemp)
ROOM_BYTES: Final = 1024**3
LEDGER_CONNECTIONS: Final = 4
COPIES_FILES: Final = 15
"""The first Postgres version with `create database ...

strategy`. With `file_copy` it does not write a new database to the WAL.
"""


class Databases(Protocol):
    """A source of fresh databases."""

    async def clone(self) -> str: ...

    async def drop(self, url: str) -> None: ...


class Throwaway:
    """A Postgres server with a template database that has the ledger and the user's tables.

    With `server_url` the databases are created on that server. Without it, an embedded Postgres is
    started without durability, and removed at the end.
    """

    def __init__(
        self, schema: Sequence[SchemaFile], *, server_url: str | None = None, engines: str = "auto"
    ) -> None:
        self._schema = schema
        self._server_url = server_url
        self._engines = engines
        self._folder: Path | None = None
        self._engine: Postgres | None = None
        self._template: str | None = None
        self._strategy = ""
        self._made: set[str] = set()

    def start(self) -> None:
        """Create the template. Raises CommandFailed if Postgres rejects the schema."""
        try:
            if self._server_url is None:
                self._start_engine()
            else:
                _run(self._drop_abandoned())
            self._template = _run(self._make_template())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove the databases, the embedded server and its folder."""
        if self._engine is not None:
            self._engine.remove()
        elif self._server_url is not None and self._made:
            _run(self._drop_names(sorted(self._made)))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._engine = self._folder = self._template = None
        self._made.clear()

    async def clone(self) -> str:
        """Create a database from the template, in about 20 to 60 ms, and return its URL."""
        return await self._create(f'template "{self._template}" {self._strategy}')

    async def drop(self, url: str) -> None:
        """Drop a database that was cloned, and end all connections to it."""
        await self._drop_names([urlsplit(url).path.removeprefix("/")])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _admin_url(self) -> str:
        if self._server_url is not None:
            return self._server_url
        if self._engine is None:
            raise RuntimeError("the throwaway Postgres has not been started")
        return self._engine.url

    def _start_engine(self) -> None:
        for place in {MEMORY, Path(tempfile.gettempdir())}:
            remove_abandoned(place)
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=fastest_place()))
        self._folder.chmod(
            0o711
        )  # the account of the engine must be able to reach its own directory in it
        engine = Postgres(self._folder / "postgres", durable=False, source=self._engines)
        engine.start()
        self._engine = engine

    async def _make_template(self) -> str:
        url = await self._create("")
        async with _connected(url) as connection:
            if self._engine is not None and connection.get_server_version().major >= COPIES_FILES:
                self._strategy = "strategy file_copy"
            await migrate(connection, self._schema)
        return urlsplit(url).path.removeprefix("/")

    async def _create(self, options: str) -> str:
        name = f"{PREFIX}{int(time.time())}_{uuid4().hex[:16]}"
        async with _connected(self._admin_url) as admin:
            try:
                await admin.execute(f'create database "{name}" {options}')
            except asyncpg.PostgresError as error:
                raise CommandFailed(
                    f"the test server refused to create a database: {describe(error)} "
                    f"({VARIABLE} needs a role that may: createdb)"
                ) from error
        self._made.add(name)
        return urlunsplit(urlsplit(self._admin_url)._replace(path=f"/{name}"))

    async def _drop_abandoned(self) -> None:
        """Drop the databases of processes that were killed before they could drop them."""
        async with _connected(self._admin_url) as admin:
            for row in await admin.fetch(_ABANDONED, f"^{PREFIX}(\\d+)_", FORGOTTEN_S):
                with suppress(asyncpg.PostgresError):  # dropped or in use by another process
                    await admin.execute(f'drop database if exists "{row["datname"]}"')

    async def _drop_names(self, names: Sequence[str]) -> None:
        async with _connected(self._admin_url) as admin:
            for name in names:
                await admin.execute(f'drop database if exists "{name}" with (force)')
                self._made.discard(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClients:
    """The connections with which handlers run on a temporary database."""

    claimer: Claimer
    ledger: Pool
    work: Sessions

    @classmethod
    async def open(cls, url: str, name: str, *, command_timeout_s: float) -> Self:
        async with _connected(url) as connection:
            search_path = await users_search_path(connection)
        claimer = Claimer(url, on_accepted=lambda _: None)  # no wake-up: the caller runs them
        await claimer.start()
        return cls(
            claimer=claimer,
            ledger=await open_pool(
                url,
                name=f"{name} ledger",
                size=LEDGER_CONNECTIONS,
                command_timeout_s=command_timeout_s,
            ),
            work=Sessions(url, name=f"{name} handlers", search_path=search_path),
        )

    def worker_context(
        self,
        project: Project,
        http: httpx.AsyncClient,
        *,
        patience: timedelta,
        api_keys: Mapping[str, Secret],
        resources: Mapping[str, Any],
    ) -> WorkerContext:
        """Return what a worker gives to its runs, without its wake-ups."""
        return WorkerContext(
            work=self.work,
            ledger=self.ledger,
            http=http,
            patience=patience,
            config=project.config,
            registry=project.registry,
            codec=LeaseCodec(project.config, OPEN),
            api_keys=api_keys,
            resources=resources,
        )

    async def close(self) -> None:
        await self.claimer.stop()
        await self.work.close()
        self.ledger.terminate()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    name = "gateway test"
    connection = await connect(url, name=name, command_timeout_s=None, variable=VARIABLE)
    try:
        yield connection
    finally:
        await connection.close()


def fastest_place() -> Path | None:
    """Return the memory file system if it has enough free space, or None for the default directory.

    After many deletions ext4 is slow to create files, and a database has 300 of them (measured:
    0.03 s in memory instead of 0.5 s).
    """
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return None
    is_roomy = found.f_bavail * found.f_frsize >= ROOM_BYTES
    return MEMORY if is_roomy and os.access(MEMORY, os.W_OK) else None


def remove_abandoned(temporary: Path) -> None:
    """Stop and remove the engines of processes that were killed before they could do so."""
    for folder in temporary.glob(f"{FOLDER_PREFIX}*"):
        try:
            status = folder.stat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < ABANDONED_S:
                continue
            engine = Postgres(folder / "postgres", durable=False)
            engine.start()  # takes over a running server; refused while its owner is alive
            engine.remove()
        except (EngineFailed, OSError):
            continue
        shutil.rmtree(folder, ignore_errors=True)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from code with or without a running event loop."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
