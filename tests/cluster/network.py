"""Machines: network namespaces on two bridges, or processes on loopback where those are denied."""

import os
import secrets
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.dev.embedded.process import children
from tests.torture.stage import NotPossible

INSIDE: Final = "GATEWAY_CLUSTER_INSIDE"
UNSHARE: Final = ("unshare", "--net", "--mount")
NAMES: Final = Path("/run/netns")
BACK, FRONT = "back", "front"
SUBNETS: Final = {BACK: "10.77.0", FRONT: "10.78.0"}
FIRST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine."""

    name: str
    address: str
    """Where the other machines reach it."""
    front: str
    """Where senders reach it."""
    listen: str
    enter: tuple[str, ...]
    """What stands before a command that is to run there."""


class Network(ABC):
    """Carries everything between hosts, until it is told not to."""

    description: str
    outside: str
    """The address of this process, for the hosts."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}

    @abstractmethod
    def open(self, names: Sequence[str]) -> None: ...

    @abstractmethod
    def cut(self, name: str, *, only: str | None = None) -> None:
        """From now on nothing gets to it and nothing from it, and nobody is told."""

    @abstractmethod
    def heal(self, name: str) -> None: ...


class Namespaces(Network):
    """Each host is a network namespace with a leg on each bridge.

    All of it is in a namespace of our own: whatever becomes of us, the kernel clears it away.
    """

    description = "network namespaces"
    outside = f"{SUBNETS[BACK]}.1"

    def open(self, names: Sequence[str]) -> None:
        NAMES.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(NAMES))
        _ip("link set lo up")
        for bridge, subnet in SUBNETS.items():
            _ip(f"link add {bridge} address {_mac(bridge, 1)} type bridge")
            _ip(f"addr add {subnet}.1/24 dev {bridge}")
            _ip(f"link set {bridge} up")
        for number, name in enumerate(names, FIRST):
            self._add(number, name)
        for place in (None, *names):
            _ip(*_neighbours(len(names)), namespace=place)

    def _add(self, number: int, name: str) -> None:
        _ip(f"netns add {name}")
        for bridge, subnet in SUBNETS.items():
            inside = f"name {bridge} address {_mac(bridge, number)} netns {name}"
            _ip(f"link add {bridge}-{number} type veth peer {inside}")
            _ip(f"link set {bridge}-{number} up master {bridge}")
            _ip(
                f"addr add {subnet}.{number}/24 dev {bridge}",
                f"link set {bridge} up",
                "link set lo up",
                namespace=name,
            )
        self.hosts[name] = Host(
            name=name,
            address=f"{SUBNETS[BACK]}.{number}",
            front=f"{SUBNETS[FRONT]}.{number}",
            listen="0.0.0.0",  # noqa: S104 (of its own namespace)
            enter=(_program("ip"), "netns", "exec", name),
        )

    def cut(self, name: str, *, only: str | None = None) -> None:
        for bridge in (only,) if only else SUBNETS:
            _ip(f"link set {self._leg(bridge, name)} nomaster")

    def heal(self, name: str) -> None:
        for bridge in SUBNETS:
            _ip(f"link set {self._leg(bridge, name)} master {bridge}")

    def _leg(self, bridge: str, name: str) -> str:
        return f"{bridge}-{self.hosts[name].address.rpartition('.')[2]}"


class Processes(Network):
    """Each host is an address of the loopback. One that is cut off is stopped: it is as silent."""

    description = "processes on loopback (no network namespaces here); who is cut off is stopped"
    outside = "127.0.0.1"

    def __init__(self, find_pids: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._find_pids = find_pids
        self._subnet = f"127.77.{secrets.randbelow(254) + 1}"

    def open(self, names: Sequence[str]) -> None:
        for number, name in enumerate(names, FIRST):
            place = f"{self._subnet}.{number}"
            self.hosts[name] = Host(name=name, address=place, front=place, listen=place, enter=())

    def cut(self, name: str, *, only: str | None = None) -> None:
        if only:
            raise NotPossible("a process can only be stopped as a whole")
        self._send(name, signal.SIGSTOP)

    def heal(self, name: str) -> None:
        self._send(name, signal.SIGCONT)

    def _send(self, name: str, signum: signal.Signals) -> None:
        for pid in self._find_pids(name):
            for each in (pid, *children(pid)):
                with suppress(ProcessLookupError):
                    os.kill(each, signum)


def can_make_namespaces() -> bool:
    """Tries it."""
    probe = [*UNSHARE, "ip", "link", "add", "probe", "type", "bridge"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _neighbours(hosts: int) -> list[str]:
    """Known for good, so that a host that is cut off is silent, as behind a router, and the kernel
    does not say after a moment that there is none."""
    return [
        f"neigh replace {subnet}.{number} lladdr {_mac(bridge, number)} dev {bridge} nud permanent"
        for bridge, subnet in SUBNETS.items()
        for number in (1, *range(FIRST, FIRST + hosts))
    ]


def _mac(bridge: str, number: int) -> str:
    return f"02:00:00:00:{list(SUBNETS).index(bridge):02x}:{number:02x}"


def _ip(*lines: str, namespace: str | None = None) -> None:
    where = ["-n", namespace] if namespace else []
    _run(_program("ip"), *where, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*command: str, text: str = "") -> None:
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {text}{ran.stderr}")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not there")
    return found
