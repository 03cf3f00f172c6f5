"""A real PgBouncer in front of a real Postgres."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from gateway.dev.embedded import process
from gateway.dev.embedded.home import engine_account
from tests.support.needs import program
from tests.support.ports import free_port

START_S: Final = 20.0
STOP_S: Final = 3.0
"""From 1.23 on, SIGTERM lets clients go on that are connected, for as long as they like."""
CONSOLE: Final = "pgbouncer"
"""The name of the database in which PgBouncer itself answers."""

CONFIG: Final = """
[databases]
* = {upstream}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
logfile =
pidfile =
auth_file = {users}
admin_users = {user}
{settings}
"""

SETTINGS: Final[Mapping[str, str]] = {
    "pool_mode": "transaction",
    "auth_type": "trust",
    "default_pool_size": "20",
    "max_client_conn": "1000",
    "server_check_delay": "30",
    "server_idle_timeout": "60",
    "server_login_retry": "1",
}
"""What the page about more than one machine says, but for the limits of a test. None of our own
startup parameters is named in ignore_startup_parameters."""


needs_own_session = pytest.mark.skipif(
    bool(os.environ.get("POOLER")),
    reason="looks for the session of a connection, which is another one through a pooler",
)


class PgBouncer:
    """One PgBouncer: stopped, killed, started again on the same port."""

    def __init__(
        self,
        directory: Path,
        upstream: str,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        user: str = "gateway",
        password: str = "",
        prefix: Sequence[str] = (),
        **settings: str,
    ) -> None:
        """`upstream` is a URL, or the text of a [databases] line. `prefix` goes before the program:
        `ip netns exec ...`"""
        self._directory = directory
        self._account = engine_account()
        self._program = find_pgbouncer()
        self._prefix = tuple(prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self.host, self.port, self.user, self.password = host, port or free_port(), user, password
        self._upstream = _line(upstream) if "://" in upstream else upstream
        self._settings = {**SETTINGS, **settings}

    @property
    def log(self) -> Path:
        return self._directory / "pgbouncer.log"

    def url(self, database: str = "gateway") -> str:
        """The URL of a database through it."""
        password = f":{self.password}" if self.password else ""
        return f"postgresql://{self.user}{password}@{self.host}:{self.port}/{database}"

    def start(self) -> None:
        """Returns when it accepts connections."""
        if self._process is not None and self._process.poll() is None:
            return
        command = [*self._prefix, self._program]
        if self._account is not None:  # it refuses to run as root
            command += ["-u", self._account.name]
        command.append(str(self._write()))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(process.ENVIRONMENT),
                start_new_session=True,
            )
        started = self._process
        if not process.wait_until(lambda: self._listens() or started.poll() is not None, START_S):
            raise AssertionError("PgBouncer does not listen: " + self.log.read_text())
        assert started.poll() is None, self.log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it as an administrator would, who does not wait for ever."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9: its clients and its servers find their connections cut."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_S)

    def restart(self) -> None:
        """As `systemctl restart` does."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Lets it answer nothing, with all connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def order(self, command: str) -> None:
        """Tells its console: `RECONNECT`, `PAUSE`, `RESUME`, `KILL gateway`, ..."""
        connection = await asyncpg.connect(self.url(CONSOLE))
        try:
            await connection.execute(command)
        finally:
            connection.terminate()

    async def point(self, upstream: str) -> None:
        """Sends what comes from now on to another server, as after a failover."""
        self._upstream = _line(upstream) if "://" in upstream else upstream
        self._write()
        await self.order("RELOAD")

    def _listens(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _write(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        users, config = self._directory / "users.txt", self._directory / "pgbouncer.ini"
        users.write_text(f'"{self.user}" "{self.password}"\n')
        lines = "\n".join(f"{name} = {value}" for name, value in self._settings.items())
        config.write_text(
            CONFIG.format(
                upstream=self._upstream,
                host=self.host,
                port=self.port,
                users=users,
                user=self.user,
                settings=lines,
            )
        )
        if self._account is not None:
            for path in (self._directory, users, config):
                os.chown(path, self._account.uid, self._account.gid)
        return config


@contextmanager
def pgbouncer(directory: Path, upstream: str, **options: Any) -> Iterator[PgBouncer]:
    """One that runs, and is ended."""
    bouncer = PgBouncer(directory, upstream, **options)
    bouncer.start()
    try:
        yield bouncer
    finally:
        bouncer.stop()


def find_pgbouncer() -> str:
    """The program; PGBOUNCER in the environment names another one than the system's."""
    return os.environ.get("PGBOUNCER") or program("pgbouncer")


def _line(url: str) -> str:
    """The server of a URL, as a [databases] line names it: every database of it is passed on."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    [host] = query.get("host") or [parts.hostname or "127.0.0.1"]
    [port] = query.get("port") or [str(parts.port or 5432)]
    return f"host={host} port={port}"
