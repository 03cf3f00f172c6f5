"""Postgres and Redis on hosts of their own: a primary, a standby that follows it, a promotion."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from gateway.dev.embedded import Postgres, Redis, process
from gateway.dev.embedded.engines import PORT, USER, Engine
from tests.cluster.network import Host

REDIS_PORT: Final = 6379
HBA: Final = "host all all all trust\nhost replication all all trust\n"
OPTIONS: Final = {
    # A connection that the network has forgotten is given up soon, and made anew.
    "wal_sender_timeout": "2s",
    "wal_receiver_timeout": "2s",
    "wal_retrieve_retry_interval": "200ms",
    "wal_keep_size": "256MB",
}


class _Placed(Engine):
    """An engine that runs on a host."""

    host: Host

    def _spawn(
        self, command: list[str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        if not self.host.enter:
            return super()._spawn(command, stdin)
        account = self._home.account
        # Only root may enter: the account is left for the engine's own afterwards.
        drop = [] if account is None else _dropping(account.uid, account.gid)
        self._logged_bytes = process.shorten(self._log)
        command = [*self.host.enter, *drop, *command]
        return process.spawn(command, home=self.home, log=self._log, account=None, stdin=stdin)


class Node(_Placed, Postgres):
    """A Postgres that others can reach, and that can follow another one."""

    def __init__(
        self, directory: Path, host: Host, *, durable: bool = True, commit: str = "on"
    ) -> None:
        super().__init__(directory, durable=durable)
        self.host = host
        self._commit = commit
        self.leader: Node | None = None

    @property
    def standby_name(self) -> str:
        return self.host.name.replace("-", "_")

    def follow(self, leader: "Node") -> None:
        """Throws its data away and starts anew with a copy of the other's."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)
        self.leader = leader
        self.start()

    def _command(self) -> list[str]:
        options = {
            "listen_addresses": self.host.address,
            "cluster_name": self.standby_name,
            "synchronous_commit": self._commit,
            **OPTIONS,
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [*super()._command(), *settings]

    def _create(self) -> None:
        if self.leader is None:
            super()._create()
            with (self._data / "pg_hba.conf").open("a", encoding="utf-8") as file:
                file.write(HBA)
        else:
            self._copy(self.leader)

    def _copy(self, leader: "Node") -> None:
        command = [str(self._binaries.directory / "pg_basebackup"), "-D", str(self._data)]
        command += ["-h", leader.host.address, "-p", str(PORT), "-U", USER]
        command += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        with self._spawn(command) as copying:
            if copying.wait() != 0:
                raise self._failure("could not be copied")


class PlacedRedis(_Placed, Redis):
    """A Redis that others can reach."""

    def __init__(self, directory: Path, host: Host) -> None:
        super().__init__(directory, durable=False)
        self.host = host

    def _command(self) -> list[str]:
        options = ["--bind", self.host.address, "--port", str(REDIS_PORT), "--protected-mode", "no"]
        return [*super()._command(), *options]


def _dropping(uid: int, gid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
