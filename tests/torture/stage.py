"""The real parts: two `serve`, two `worker`, Postgres and Redis behind wires, and their upkeep."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from itertools import cycle
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from gateway.dev.embedded import Postgres, Redis
from gateway.ledger.connection import Connection
from tests.support.ports import free_port
from tests.support.processes import Project
from tests.torture.callee import Callee
from tests.torture.child import Child
from tests.torture.clock import Clock, clean_up, find_library
from tests.torture.plan import SERVES, WORKERS
from tests.torture.wire import HOST, Address, Wire

PROJECT: Final = Path(__file__).with_name("project")
LEASE_S, SWEEP_S, HANDLER_TIMEOUT_S = 3, 1, 5
DEPLOYS: Final = (
    (("serve-1", "worker-1"), "yes"),
    (("serve-2", "worker-2"), "yes"),
    (("serve-1", "worker-1"), "no"),
    (("serve-2", "worker-2"), "no"),
)
"""A rolling deploy of the version with renamed handlers, and its rollback: after the first and the
third step, old and new processes run side by side."""
DISK_BYTES: Final = 16 * 1024**2
CONNECT_S: Final = 5.0
READY_S: Final = 60.0


class NotPossible(Exception):
    """A fault that cannot be made on this machine."""


class _ClockedPostgres(Postgres):
    """Postgres with a clock of its own."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        super().__init__(directory, durable=True)
        self._clock = clock

    def _command(self) -> list[str]:
        variables = [f"{name}={value}" for name, value in self._clock.environ.items()]
        return ["env", *variables, *super()._command()]


class Stage:
    """Everything that runs, and how to get at it."""

    def __init__(self, directory: Path) -> None:
        library = find_library()
        self.directory = directory
        self.clocks = {name: Clock(directory / name, library) for name in ("gateway", "postgres")}
        self.postgres = _ClockedPostgres(directory / "pg", self.clocks["postgres"])
        self.redis = Redis(directory / "redis", durable=False)
        self.postgres_wire = Wire(_postgres_socket(self.postgres.url))
        self.redis_wire = Wire(Path(urlsplit(self.redis.url).path))
        self.callee = Callee()
        self.ports = {name: free_port() for name in SERVES}
        self.children: dict[str, Child] = {}
        self.disk = directory / "data"
        self.disk_is_small = False
        self.deploys = cycle(DEPLOYS)
        self._pids: set[int] = set()
        self._engine_turn = threading.Lock()

    async def engine(self, work: Callable[[], None]) -> None:
        """Starts or stops an engine. One at a time: a cancelled caller leaves its thread behind."""

        def take_turn() -> None:
            with self._engine_turn:
                work()
                self._pids.add(self.postgres.pid or 0)

        await asyncio.to_thread(take_turn)

    async def connect(self) -> Connection:
        """To Postgres, past the wire."""
        return await asyncpg.connect(
            self.postgres.url,
            timeout=CONNECT_S,
            command_timeout=READY_S,
            server_settings={"application_name": "torture"},
        )

    async def ready(self, *names: str) -> None:
        """Waits until these processes are up, or all of them."""
        async with asyncio.timeout(READY_S):
            for name in names or self.children:
                await self.children[name].ready()

    @property
    def addresses(self) -> list[Address]:
        return [(HOST, self.ports[name]) for name in SERVES]

    @property
    def restarts(self) -> int:
        return sum(child.starts - 1 for child in self.children.values())

    async def start(self) -> None:
        """Engines, wires, the schema, and then the processes."""
        self.disk.mkdir()
        self.disk_is_small = await asyncio.to_thread(_mount, self.disk)
        await self.engine(self.postgres.start)
        await self.engine(self.redis.start)
        await self.postgres_wire.open()
        await self.redis_wire.open()
        await self.callee.start()
        self._project = self._make_project()
        await self.command("migrate")
        for name in (*SERVES, *WORKERS):
            self._start_child(self._project, name)
        await self.ready()

    async def command(self, *arguments: str) -> str:
        """Run a command of the gateway, and return what it printed."""
        return await run_command(self._project, *arguments)

    async def stop(self) -> None:
        """Ends whatever was started."""
        await asyncio.gather(*(child.stop() for child in self.children.values()))
        await self.postgres_wire.close()
        await self.redis_wire.close()
        await self.callee.stop()
        await self.engine(self.redis.stop)
        await self.engine(self.postgres.stop)
        if self.disk_is_small:
            await asyncio.to_thread(_unmount, self.disk)
        clean_up(self._pids.union(*(child.pids for child in self.children.values())))

    def _make_project(self) -> Project:
        database_url = f"postgresql://gateway@{HOST}:{self.postgres_wire.port}/gateway"
        redis_url = f"redis://{HOST}:{self.redis_wire.port}/0"
        project = Project(self.directory / "project", f"{database_url}?sslmode=disable", redis_url)
        shutil.copytree(PROJECT, project.directory, dirs_exist_ok=True)
        project.environ |= {
            "GATEWAY_DATA_DIR": str(self.disk),
            "GATEWAY_LEASE": f"{LEASE_S}s",
            "GATEWAY_SWEEP": f"{SWEEP_S}s",
            "CALLEE_URL": self.callee.url,
        }
        return project

    def _start_child(self, project: Project, name: str) -> None:
        role = name.partition("-")[0]
        environ = project.environ | self.clocks["gateway"].environ
        if name in self.ports:
            environ |= {"GATEWAY_PORT": str(self.ports[name])}
        child = Child(
            name,
            [sys.executable, "-m", "gateway", role, "--with-parent"],
            environ=environ,
            directory=project.directory,
            logs=self.directory,
            ready_line="worker_started" if role == "worker" else '"serving"',
        )
        self.children[name] = child
        child.start()


async def run_command(project: Project, *arguments: str) -> str:
    """Run a command of the gateway in a project, and return what it printed."""
    ran = await asyncio.to_thread(project.run, *arguments)
    if ran.returncode != 0:
        raise RuntimeError(f"gateway {' '.join(arguments)}: {ran.stdout}{ran.stderr}")
    return ran.stdout


@contextlib.asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[Stage]:
    """A stage on which everything runs; ended whatever happens."""
    stage = Stage(directory)
    try:
        await stage.start()
        yield stage
    finally:
        await stage.stop()


def _postgres_socket(url: str) -> Path:
    options = parse_qs(urlsplit(url).query)
    return Path(options["host"][0]) / f".s.PGSQL.{options['port'][0]}"


def _mount(directory: Path) -> bool:
    """A disk so small that it can be filled; False where that is not permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], capture_output=True, check=False)
