"""Engines of the bench's own, the project that it measures, and everything that runs on them."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from redis import Redis as RedisClient

from bench.database import Database
from bench.figures import Results
from bench.machine import Reading, available_bytes, read_meters
from bench.processes import Process, free_port
from bench.requests import SECRET
from gateway.dev.embedded import Postgres, Redis
from gateway.worker.statements import upsert_statement

ROOT = Path(__file__).parents[1]
PROJECT = Path(__file__).parent / "project"
RESULTS = Path(__file__).parent / "results"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a private directory is made in it)
ENVIRON_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
UPSERT = upsert_statement("orders", ("id",), ("status", "amount"), True)
SPARE = 3
"""Requests are kept in memory only where that leaves so many times their size."""


@dataclass(kw_only=True)
class Environment:
    """What the stages share."""

    directory: Path
    postgres: Postgres
    redis: Redis
    database: Database
    results: dict[str, Results] = field(default_factory=dict)
    """What earlier stages of this run found."""
    _names: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    @property
    def redis_socket(self) -> str:
        return urlsplit(self.redis.url).path

    def reset(self) -> None:
        """The same empty state before each run that stores anything."""
        self.database.empty()
        self.flush_redis()

    def flush_redis(self) -> None:
        with self._redis() as client:
            client.flushall()

    def redis_info(self, section: str) -> dict[str, Any]:
        with self._redis() as client:
            return cast(dict[str, Any], client.info(section))

    def read_meters(self, *processes: Process) -> Reading:
        return read_meters(
            {
                "own": [process.pid for process in processes],
                "postgres": [self.postgres.pid or 0],
                "redis": [self.redis.pid or 0],
            }
        )

    @contextlib.contextmanager
    def requests_file(self, expected_bytes: int) -> Iterator[Path]:
        """Where requests are kept: in memory if it is plenty, else on disk."""
        shared = SHARED_MEMORY.is_dir() and available_bytes() > SPARE * expected_bytes
        file = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if shared else self.directory)) / "requests"
        try:
            yield file
        finally:
            shutil.rmtree(file.parent, ignore_errors=True)

    def add_database(self, name: str) -> Database:
        """Another database of the same server, migrated."""
        self.database.execute(f'create database "{name}"')
        url = urlunsplit(urlsplit(self.database.url)._replace(path=f"/{name}"))
        self.migrate(url)
        return Database(url)

    def put_off_checkpoints(self, wal: str | None) -> None:
        """Until so much is written, or an hour has passed; None for what it was."""
        settings = {"max_wal_size": wal, "checkpoint_timeout": None if wal is None else "1h"}
        for name, value in settings.items():
            change = f"reset {name}" if value is None else f"set {name} = '{value}'"
            self.database.execute(f"alter system {change}")
        self.database.execute("select pg_reload_conf()")

    def migrate(self, database_url: str) -> None:
        command = [sys.executable, "-m", "gateway", "migrate"]
        environ = self.environ(GATEWAY_DATABASE_URL=database_url)
        subprocess.run(command, cwd=PROJECT, env=environ, check=True, stdout=subprocess.DEVNULL)

    def serve(self, *, port: int = 0, **environ: str) -> Process:
        """`gateway serve` on a port of its own, or on that of another."""
        port = port or free_port()
        command = ["-m", "gateway", "serve"]
        environ["GATEWAY_PORT"] = str(port)
        return self._start("gateway serve", command, environ, ready_line='"serving"', port=port)

    def worker(self, **environ: str) -> Process:
        """`gateway worker`."""
        command = ["-m", "gateway", "worker"]
        return self._start("gateway worker", command, environ, ready_line='"worker_started"')

    def http_contestant(self, name: str) -> Process:
        port = free_port()
        return self._start(name, ["-m", "bench.contestants", name, str(port)], {}, port=port)

    def worker_contestant(self, name: str) -> Process:
        return self._start(name, ["-m", "bench.workers", name], {}, ready_line="Starting worker")

    def module(self, *command: str, ready_line: str = "{") -> Process:
        """`python -m bench...`, which leaves its figures in the last line of its log."""
        return self._start(command[0], ["-m", *command], {}, ready_line=ready_line)

    def environ(self, **more: str) -> dict[str, str]:
        """Nothing of the caller's settings: a log level set there would change the figures."""
        return {
            **{name: os.environ[name] for name in ENVIRON_KEPT if name in os.environ},
            "PYTHONPATH": str(ROOT),
            "GATEWAY_CONFIG": "routes.yaml",
            "GATEWAY_DATA_DIR": str(self.directory / "gateway"),
            "GATEWAY_DATABASE_URL": self.database.url,
            "GATEWAY_REDIS_URL": self.redis.url,
            "BENCH_DATABASE_URL": self.database.url,
            "BENCH_REDIS_SOCKET": self.redis_socket,
            "BENCH_SECRET": SECRET.decode(),
            "BENCH_UPSERT": UPSERT,
            **more,
        }

    def _start(
        self,
        name: str,
        command: list[str],
        environ: dict[str, str],
        *,
        ready_line: str = "",
        port: int = 0,
    ) -> Process:
        return Process(
            name,
            [sys.executable, *command],
            environ=self.environ(**environ),
            directory=PROJECT,
            log=self.directory / f"{next(self._names)}.log",
            ready_line=ready_line,
            port=port,
        )

    @contextlib.contextmanager
    def _redis(self) -> Iterator[RedisClient]:
        with RedisClient(unix_socket_path=self.redis_socket) as client:
            yield client


@contextlib.contextmanager
def open_environment() -> Iterator[Environment]:
    """A Postgres with fsync on and a Redis with AOF, as `gateway up` starts them."""
    directory = Path(tempfile.mkdtemp(prefix="gateway-bench-"))
    directory.chmod(0o711)  # the engines' account must get through to its own
    postgres, queue = Postgres(directory / "postgres"), Redis(directory / "redis")
    try:
        postgres.start()
        queue.start()
        with _connected(postgres.url) as database:
            database.execute("alter system set track_commit_timestamp = on")
        postgres.restart()
        with _connected(postgres.url) as database:
            environment = Environment(
                directory=directory, postgres=postgres, redis=queue, database=database
            )
            environment.migrate(postgres.url)
            yield environment
    finally:
        postgres.stop()
        queue.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _connected(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()
