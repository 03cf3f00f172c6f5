"""An embedded Redis or Valkey that listens on a unix socket only."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from signal import Signals

from gateway.dev.embedded import process as wire
from gateway.dev.embedded.binaries import Binaries, find_redis
from gateway.dev.embedded.engine import Engine


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
        return wire.ping(self._socket)
