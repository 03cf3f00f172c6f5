"""A Redis master with a replica, watched by real Sentinels, on loopback."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from gateway.dev.embedded import process
from gateway.dev.embedded.binaries import BinaryPaths, find_redis
from tests.support.certificates import Pair
from tests.support.needs import program
from tests.support.ports import free_port

MASTER: Final = "mymaster"
PASSWORD: Final = "secret-of-the-data-nodes"
SENTINEL_PASSWORD: Final = "secret-of-the-sentinels"
START_S: Final = 20.0
STOP_S: Final = 10.0
FAIL_OVER_S: Final = 60.0
BLIND_MS: Final = 600_000

NODE: Final = """
bind {host}
{port}
dir {directory}
save ""
appendonly no
protected-mode no
requirepass "{password}"
masterauth "{password}"
repl-diskless-sync-delay 0
repl-timeout 5
replica-announce-ip {host}
"""

WATCHER: Final = """
bind {host}
{port}
dir {directory}
protected-mode no
requirepass "{sentinel_password}"
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip {host}
sentinel monitor {master} {master_host} {master_port} {quorum}
sentinel auth-pass {master} {password}
sentinel down-after-milliseconds {master} 500
sentinel failover-timeout {master} 3000
sentinel parallel-syncs {master} 1
"""


class Node:
    """One server: a data node or a sentinel."""

    def __init__(
        self, directory: Path, config: str, host: str, port: int, password: str, *options: str
    ) -> None:
        self.host, self.port, self.password = host, port, password
        self._directory = directory
        self._config = config
        self._options = options
        self.tls: Mapping[str, Any] = {}
        """With what its own tests connect to it."""
        self.prefix: Sequence[str] = ()
        """Goes before the program: `ip netns exec ...`."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    def start(self) -> None:
        """Returns when it answers. Its configuration is kept: sentinels rewrite theirs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "server.conf"
        if not config.exists():
            config.write_text(self._config)
        server = _with_tls(self._directory) if self.tls else find_redis(BinaryPaths(), None).server
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, str(server), str(config), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(process.ENVIRONMENT),
                start_new_session=True,
            )
        assert process.wait_until(self.answers, START_S), self.log.read_text()

    def answers(self) -> bool:
        with suppress(RedisError, OSError):
            return bool(self.ask("PING"))
        return False

    def ask(self, *command: str) -> Any:
        """One command, on a connection of its own."""
        with Redis(
            host=self.host,
            port=self.port,
            password=self.password,
            socket_timeout=2,
            decode_responses=True,
            **self.tls,
        ) as client:
            return client.execute_command(*command)

    def mislead(self, node: "Node") -> None:
        """Lets a sentinel name this node for a while, whatever becomes of it."""
        self.ask("SENTINEL", "REMOVE", MASTER)
        self.ask("SENTINEL", "MONITOR", MASTER, node.host, str(node.port), "1")
        self.ask("SENTINEL", "SET", MASTER, "down-after-milliseconds", str(BLIND_MS))
        self.ask("SENTINEL", "SET", MASTER, "auth-pass", node.password)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_S)


@dataclass(frozen=True)
class Tls:
    """What its servers show, to each other and to clients, and whom they believe."""

    authority: Path
    pair: Pair

    @property
    def options(self) -> dict[str, str]:
        return {
            "ssl_ca_certs": str(self.authority),
            "ssl_certfile": str(self.pair.certificate),
            "ssl_keyfile": str(self.pair.key),
        }

    def lines(self, port: int) -> str:
        return (
            f"port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients yes\n"
            f"tls-ca-cert-file {self.authority}\n"
            f"tls-cert-file {self.pair.certificate}\ntls-key-file {self.pair.key}"
        )


class Watched:
    """Data nodes and their sentinels."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 2,
        sentinels: int = 3,
        hosts: Sequence[str] = ("127.0.0.1",),
        name: str = MASTER,
        tls: Tls | None = None,
    ) -> None:
        """Node n and sentinel n live on host n, or all of them on the one host."""
        self.name, self.tls = name, tls
        self.nodes = [
            _node(directory / f"node{n}", hosts[n % len(hosts)], tls) for n in range(nodes)
        ]
        self.sentinels = [
            _sentinel(
                directory / f"sentinel{n}",
                hosts[n % len(hosts)],
                self.nodes[0],
                name,
                sentinels // 2 + 1,
                tls,
            )
            for n in range(sentinels)
        ]

    @property
    def url(self) -> str:
        """As GATEWAY_REDIS_URL names it."""
        hosts = ",".join(f"{s.host}:{s.port}" for s in self.sentinels)
        place = f":{PASSWORD}@{hosts}/{self.name}/0?sentinel_password={SENTINEL_PASSWORD}"
        return f"redis+sentinel://{place}" if self.tls is None else f"rediss+sentinel://{place}"

    def start(self) -> None:
        """Returns when every sentinel knows the others and the replicas."""
        for node in self.nodes:
            node.start()
        master, *replicas = self.nodes
        for replica in replicas:
            replica.ask("REPLICAOF", master.host, str(master.port))
        for sentinel in self.sentinels:
            sentinel.start()
        assert process.wait_until(self._is_complete, START_S), self.sentinels[0].log.read_text()

    def start_again(self) -> None:
        """Starts what was killed; returns when all know each other again."""
        for node in (*self.nodes, *self.sentinels):
            node.start()
        assert process.wait_until(self._is_complete, START_S), self.sentinels[0].log.read_text()

    def stop(self) -> None:
        for node in (*self.sentinels, *self.nodes):
            node.kill()

    def master(self) -> Node:
        """The data node that the sentinels name."""
        address = self._named_by(self._alive()[0])
        return next(node for node in self.nodes if node.address == address)

    def replica(self) -> Node:
        """A data node that is not the master."""
        master = self.master()
        return next(node for node in self.nodes if node is not master)

    def fail_over(self) -> Node:
        """Orders it, both nodes alive; returns the new master, when they all name it."""
        return self._moved(lambda: self._alive()[0].ask("SENTINEL", "FAILOVER", self.name))

    def kill_master(self) -> Node:
        """kill -9 of the master; returns the one that the sentinels chose then."""
        return self._moved(self.master().kill)

    def _moved(self, act: Callable[[], object]) -> Node:
        before = self.master()
        act()
        assert process.wait_until(lambda: self._has_left(before), FAIL_OVER_S), "no failover"
        return self.master()

    def _alive(self) -> list[Node]:
        return [sentinel for sentinel in self.sentinels if sentinel.answers()]

    def _has_left(self, before: Node) -> bool:
        """Whether every sentinel names another master, and that one is it."""
        named = {self._named_by(sentinel) for sentinel in self._alive()}
        if len(named) != 1 or before.address in named:
            return False
        with suppress(RedisError, OSError):
            return bool(self.master().ask("ROLE")[0] == "master")
        return False

    def _named_by(self, sentinel: Node) -> tuple[str, int]:
        host, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return host, int(port)

    def _is_complete(self) -> bool:
        return all(map(self._knows_all, self.sentinels))

    def _knows_all(self, sentinel: Node) -> bool:
        flat = sentinel.ask("SENTINEL", "MASTER", self.name)
        state = dict(zip(flat[::2], flat[1::2], strict=True))
        return (int(state["num-other-sentinels"]), int(state["num-slaves"])) == (
            len(self.sentinels) - 1,
            len(self.nodes) - 1,
        )


@contextmanager
def watched(directory: Path, **options: Any) -> Iterator[Watched]:
    """A set that runs, and is ended."""
    redis = Watched(directory, **options)
    try:
        redis.start()
        yield redis
    finally:
        redis.stop()


def _node(directory: Path, host: str, tls: Tls | None) -> Node:
    port = free_port()
    lines = _port(port, tls)
    config = NODE.format(host=host, port=lines, directory=directory, password=PASSWORD)
    return _told(Node(directory, config, host, port, PASSWORD), tls)


def _sentinel(
    directory: Path, host: str, master: Node, name: str, quorum: int, tls: Tls | None
) -> Node:
    port = free_port()
    config = WATCHER.format(
        host=host,
        port=_port(port, tls),
        directory=directory,
        master=name,
        master_host=master.host,
        master_port=master.port,
        quorum=quorum,
        password=PASSWORD,
        sentinel_password=SENTINEL_PASSWORD,
    )
    return _told(Node(directory, config, host, port, SENTINEL_PASSWORD, "--sentinel"), tls)


def _with_tls(directory: Path) -> Path:
    """A server that was built with TLS, which that of the wheels is not. In Debian it is the same
    program as a tool, and goes by the name under which it is called."""
    tool = program("redis-check-rdb")
    server = directory / "redis-server"
    if not server.exists():
        server.symlink_to(Path(tool).resolve())
    return server


def _port(port: int, tls: Tls | None) -> str:
    return f"port {port}" if tls is None else tls.lines(port)


def _told(node: Node, tls: Tls | None) -> Node:
    node.tls = {} if tls is None else {"ssl": True, **tls.options}
    return node
