"""The embedded engines: started cleanly after any kind of end, supervised, with four stop modes."""

import os
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Self
from urllib.parse import quote

from gateway.base.errors import EngineFailed
from gateway.dev.embedded import process
from gateway.dev.embedded.binaries import Binaries, BinaryPaths, find_postgres, find_redis
from gateway.dev.embedded.home import EngineHome, HomeLock, settle

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
PING_TIMEOUT_S = 5.0
LOG_LINES_SHOWN = 6

PORT = 5432
USER = "gateway"
DATABASE = "gateway"
SOCKET = f".s.PGSQL.{PORT}"
STATUS_LINE = 7
"""Index of the status in postmaster.pid (Postgres: src/include/utils/pidfile.h)."""

OPTIONS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "synchronous_commit": "on",
}


class Engine(ABC):
    """A server that we supervise, with a directory of its own."""

    name: str
    signals: Mapping[str, Signals]

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = True,
        source: str = "auto",
        places: BinaryPaths | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._durable = durable
        self._source = source
        self._places = places or BinaryPaths()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: HomeLock | None = None
        self._logged_bytes = 0

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def _binaries(self) -> Binaries: ...

    @property
    @abstractmethod
    def _pidfile(self) -> Path: ...

    @property
    @abstractmethod
    def _proof(self) -> str:
        """Part of the command line that is unique to the engine of this directory."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _ready(self) -> bool: ...

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running() else None

    @property
    def home(self) -> Path:
        """The directory of the data: the given one, unless the engine's account cannot reach it."""
        return self._home.path

    @property
    def description(self) -> str:
        text = f"{self._binaries}, data in {_short(self.home)}"
        if self.home != self._directory and self._home.account is not None:
            text += f" ({self._home.account.name} cannot reach {_short(self._directory)})"
        return text

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the engine and return when it accepts connections.

        An engine left over from a killed run is stopped first.
        """
        if self.running():
            return
        try:
            with ExitStack() as undo:
                undo.callback(self.kill)
                self._lock = self._lock or HomeLock(self.home / "lock")
                self._end_orphan()
                self._prepare()
                self._launch()
                undo.pop_all()
        except OSError as problem:
            raise EngineFailed(f"{self.name} could not be started: {problem}") from problem

    def stop(self) -> None:
        self._stop("fast")

    def kill(self) -> None:
        if self._process is not None and self.running():
            process.kill_tree(self._process.pid)
            self._process.wait()
        self._release()

    def restart(self, mode: str = "fast") -> None:
        """Stop and start. The mode is `smart`, `fast` or `immediate`, as in pg_ctl, or `kill`."""
        if mode == "kill":
            self.kill()
        else:
            self._stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the engine and delete its data directory, unless another gateway uses it."""
        self.stop()
        self._lock = HomeLock(self.home / "lock")
        self._home.remove()
        self._release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @cached_property
    def _home(self) -> EngineHome:
        return settle(self._directory, self._places.system)

    @property
    def _log(self) -> Path:
        return self.home / f"{self.name.lower()}.log"

    def _spawn(
        self, command: list[str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        account = self._home.account
        self._logged_bytes = process.shorten(self._log)
        return process.spawn(command, home=self.home, log=self._log, account=account, stdin=stdin)

    def _launch(self) -> None:
        self._process = self._spawn(self._command())
        ended = process.wait_until(lambda: self._accepts() or not self.running(), START_TIMEOUT_S)
        if not self.running() or not ended:
            raise self._failure("did not start")

    def _accepts(self) -> bool:
        try:
            return self.running() and self._ready()
        except OSError:
            return False

    def _failure(self, what: str) -> EngineFailed:
        text = self._log.read_bytes()[self._logged_bytes :].decode(errors="replace")
        lines = [
            f"{self.name} {what} ({_short(self._log)}):",
            *text.splitlines()[-LOG_LINES_SHOWN:],
        ]
        return EngineFailed("\n  ".join(lines))

    def _stop(self, mode: str) -> None:
        number = self.signals[mode]
        if self._process is not None and self.running():
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _end_orphan(self) -> None:
        try:
            pid = int(self._pidfile.read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return
        process.end(pid, self.signals["fast"], self._proof, STOP_TIMEOUT_S)
        # Another process may have this pid by now, and Postgres would refuse
        # to start because of it.
        self._pidfile.unlink(missing_ok=True)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


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
        """Make the database in a draft directory and rename it, so that an interrupted run
        leaves no half database.
        """
        draft = self.home / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        initdb = [str(self._binaries.directory / "initdb"), "-D", str(draft), "-U", USER]
        initdb += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
        single = [str(self._binaries.server), "--single", "-D", str(draft), "postgres"]
        if not self._durable:
            initdb.append("--no-sync")
            single.insert(2, "-F")
        for command, text in ((initdb, ""), (single, f"CREATE DATABASE {DATABASE}\n")):
            with self._spawn(command, stdin=subprocess.PIPE) as made:
                made.communicate(text.encode())
            if made.returncode != 0:
                raise self._failure("could not create its data directory")
        draft.rename(self._data)
        if self._durable:
            _sync(self.home)

    def _ready(self) -> bool:
        # pg_ctl, too, waits for this status of a primary or a standby.
        lines = self._pidfile.read_text().splitlines()
        return len(lines) > STATUS_LINE and lines[STATUS_LINE].strip() in {"ready", "standby"}


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Redis(Engine):
    name = "Redis"
    signals: Mapping[str, Signals] = {
        "smart": Signals.SIGTERM,
        "fast": Signals.SIGTERM,
        "immediate": Signals.SIGKILL,
    }

    @property
    def url(self) -> str:
        return f"unix://{self._socket}?db=0"

    @property
    def _pidfile(self) -> Path:
        return self.home / "redis.pid"

    @property
    def _socket(self) -> Path:
        return self._home.sockets / "redis.sock"

    @property
    def _proof(self) -> str:
        return f"-server --dir {self.home} --port 0 "

    @cached_property
    def _binaries(self) -> Binaries:
        return find_redis(self._places, self._home.account, source=self._source)

    def _command(self) -> list[str]:
        options = {
            "dir": str(self.home),
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "pidfile": str(self._pidfile),
            "set-proc-title": "no",
            "save": "",
            "appendonly": "yes" if self._durable else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        settings = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(self._binaries.server), *settings]

    def _prepare(self) -> None:
        # A server that still listens on the old socket would be mistaken for the new one.
        self._socket.unlink(missing_ok=True)

    def _ready(self) -> bool:
        """Return whether Redis answers. It does not while it loads its data."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PING_TIMEOUT_S)
            connection.connect(str(self._socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
