"""An embedded Postgres that listens on a unix socket only."""

import os
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from signal import Signals
from urllib.parse import quote

from gateway.dev.embedded import process
from gateway.dev.embedded import process as wire
from gateway.dev.embedded.binaries import Binaries, find_postgres
from gateway.dev.embedded.engine import Engine

PORT = 5432
USER = "gateway"
DATABASE = "gateway"
MAINTENANCE_DATABASE = "postgres"
SOCKET = f".s.PGSQL.{PORT}"

OPTIONS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "synchronous_commit": "on",
}


class Postgres(Engine):
    name = "Postgres"
    signals: Mapping[str, Signals] = {
        "smart": Signals.SIGTERM,
        "fast": Signals.SIGINT,
        "immediate": Signals.SIGQUIT,
    }

    @property
    def url(self) -> str:
        # Name the port explicitly, because asyncpg would otherwise use PGPORT.
        return f"postgresql://{USER}@/{DATABASE}?host={quote(str(self._home.sockets))}&port={PORT}"

    @property
    def _data(self) -> Path:
        return self.home / "data"

    @property
    def _pidfile(self) -> Path:
        return self._data / "postmaster.pid"

    @property
    def _socket(self) -> Path:
        return self._home.sockets / SOCKET

    @property
    def _proof(self) -> str:
        return f"/postgres -D {self._data} -c port={PORT} "

    @cached_property
    def _binaries(self) -> Binaries:
        account, version = self._home.account, self._data / "PG_VERSION"
        major = int(version.read_text().split(".")[0]) if version.exists() else None
        return find_postgres(self._places, account, source=self._source, major=major)

    def _command(self) -> list[str]:
        secure = "on" if self._durable else "off"
        options = {
            "port": str(PORT),
            "unix_socket_directories": str(self._home.sockets),
            **OPTIONS,
            "fsync": secure,
            "full_page_writes": secure,
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self._binaries.server), "-D", str(self._data), *settings]

    def _prepare(self) -> None:
        # A busy backend outlives a killed postmaster, and holds the shared memory until it ends.
        process.kill_all(process.inside(self._data, "postgres"))
        for stale in (self._socket, self._socket.with_name(f"{SOCKET}.lock")):
            stale.unlink(missing_ok=True)
        if not self._data.exists():
            self._create()

    def _create(self) -> None:
        """Run initdb in a draft directory and rename it, so that an interrupted run
        leaves no half database.
        """
        draft = self.home / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        command = [str(self._binaries.directory / "initdb"), "-D", str(draft), "-U", USER]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
        command += [] if self._durable else ["--no-sync"]
        with self._spawn(command) as initdb:
            if initdb.wait() != 0:
                raise self._failure("could not create its data directory")
        draft.rename(self._data)
        if self._durable:
            _sync(self.home)

    def _ready(self) -> bool:
        refusal = wire.query(self._socket, user=USER, database=DATABASE)
        if refusal == wire.DATABASE_MISSING:
            create = f"CREATE DATABASE {DATABASE}"
            refusal = wire.query(self._socket, user=USER, database=MAINTENANCE_DATABASE, sql=create)
        return refusal is None


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
