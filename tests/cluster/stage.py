"""The real parts: three `serve`, three `worker`, a primary, its standby and Redis, each a host."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from gateway.dev.embedded.engines import PORT
from gateway.ledger.connection import Connection
from tests.cluster.engines import REDIS_PORT, Node, PlacedRedis
from tests.cluster.network import Namespaces, Network, Processes
from tests.cluster.pair import Pair, connect_to
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Project
from tests.torture.callee import Callee
from tests.torture.child import Child
from tests.torture.stage import LEASE_S, PROJECT, READY_S, SWEEP_S, NotPossible, run_command
from tests.torture.wire import Address

SIZE: Final = 3
SERVES: Final = tuple(f"serve-{n}" for n in range(1, SIZE + 1))
WORKERS: Final = tuple(f"worker-{n}" for n in range(1, SIZE + 1))
NODES: Final = ("pg-1", "pg-2")
REDIS: Final = "redis"
POOLER: Final = "pooler"
POOLER_PORT: Final = 6432
SERVE_PORT: Final = 8000


class Cluster:
    """Everything that runs, and who is the primary just now."""

    def __init__(
        self,
        directory: Path,
        *,
        is_synchronous: bool,
        namespaces: bool,
        size: int = SIZE,
        commit: str = "on",
        through_pooler: bool = False,
    ) -> None:
        self.directory = directory
        self.serves, self.workers = SERVES[:size], WORKERS[:size]
        self.network: Network = Namespaces() if namespaces else Processes(self._find_pids)
        self.network.open((*self.serves, *self.workers, *NODES, REDIS, POOLER))
        hosts = self.network.hosts
        nodes = (Node(directory / name, hosts[name], commit=commit) for name in NODES)
        self.pair = Pair(*nodes, is_synchronous=is_synchronous)
        self.pooler = self._make_pooler() if through_pooler else None
        self.redis = PlacedRedis(directory / REDIS, hosts[REDIS])
        self.callee = Callee(self.network.outside)
        self.children: dict[str, Child] = {}

    @property
    def addresses(self) -> list[Address]:
        return [(self.network.hosts[name].front, SERVE_PORT) for name in self.serves]

    @property
    def restarts(self) -> int:
        return sum(child.starts - 1 for child in self.children.values())

    @property
    def database_url(self) -> str:
        """Of both servers, or of the pooler before them."""
        if self.pooler is None:
            return self.pair.url
        return f"{self.pooler.url()}?sslmode=disable"

    @property
    def redis_url(self) -> str:
        return f"redis://{self.network.hosts[REDIS].address}:{REDIS_PORT}/0"

    async def connect(self) -> Connection:
        """To the primary, past the network."""
        return await connect_to(self.pair.primary)

    async def ready(self, *names: str) -> None:
        """Waits until these processes are up, or all of them."""
        if absent := set(names) - self.children.keys():
            raise NotPossible(f"there is no {' and '.join(absent)}")
        async with asyncio.timeout(READY_S):
            for name in names or self.children:
                await self.children[name].ready()

    async def start(self) -> None:
        """Engines, the schema, and then the processes."""
        await self.pair.start()
        await self.pair.order(self.redis.start)
        if self.pooler is not None:
            await self.pair.order(self.pooler.start)
        await self.callee.start()
        self._project = self._make_project()
        await self.command("migrate")
        for name in (*self.serves, *self.workers):
            self._start_child(self._project, name)
        await self.ready()

    async def command(self, *arguments: str) -> str:
        """Run a command of the gateway, and return what it printed."""
        return await run_command(self._project, *arguments)

    async def stop(self) -> None:
        """Ends whatever was started."""
        for name in self.network.hosts:
            self.network.heal(name)
        await asyncio.gather(*(child.stop() for child in self.children.values()))
        await self.callee.stop()
        await self.pair.order(self.redis.kill)
        if self.pooler is not None:
            await self.pair.order(self.pooler.kill)
        await self.pair.stop()

    async def promote(self) -> None:
        """Clients find the new one by themselves, or the pooler is told."""
        await self.pair.promote()
        if self.pooler is not None:
            await self.pooler.point(_upstream(self.pair.primary))

    def _make_pooler(self) -> PgBouncer:
        host = self.network.hosts[POOLER]
        return PgBouncer(
            self.directory / POOLER,
            _upstream(self.pair.primary),
            host=host.address,
            port=POOLER_PORT,
            prefix=host.enter,
        )

    def _find_pids(self, name: str) -> list[int]:
        engines = (self.pair.primary, self.pair.standby, self.redis)
        found = [engine.pid for engine in engines if engine.host.name == name]
        found += [child.pid for child in self.children.values() if child.name == name]
        return [pid for pid in found if pid is not None]

    def _make_project(self) -> Project:
        project = Project(self.directory / "project", self.database_url, self.redis_url)
        shutil.copytree(PROJECT, project.directory, dirs_exist_ok=True)
        project.environ |= {
            "GATEWAY_LEASE": f"{LEASE_S}s",
            "GATEWAY_SWEEP": f"{SWEEP_S}s",
            "CALLEE_URL": self.callee.url,
        }
        return project

    def _start_child(self, project: Project, name: str) -> None:
        role, host = name.partition("-")[0], self.network.hosts[name]
        own = {
            "GATEWAY_DATA_DIR": str(self.directory / name),
            "GATEWAY_HOST": host.listen,
            "GATEWAY_PORT": str(SERVE_PORT),
        }
        child = Child(
            name,
            [*host.enter, sys.executable, "-m", "gateway", role, "--with-parent"],
            environ=project.environ | own,
            directory=project.directory,
            logs=self.directory,
            ready_line="worker_started" if role == "worker" else '"serving"',
        )
        self.children[name] = child
        child.start()


@contextlib.asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Cluster]:
    """On it everything runs; ended whatever happens."""
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def _upstream(node: Node) -> str:
    return f"host={node.host.address} port={PORT}"
