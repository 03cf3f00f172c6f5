"""What systemd is told."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.systemd import Notifier
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """Its side of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def environ(systemd: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": systemd.getsockname(), **more}


async def heard(systemd: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(systemd, 100), PATIENCE_S)


async def test_it_says_that_it_works(systemd: socket.socket) -> None:
    Notifier(environ(systemd)).started()
    assert await heard(systemd) == b"READY=1"
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


async def test_it_says_so_again_and_again_where_it_is_watched(systemd: socket.socket) -> None:
    Notifier(environ(systemd, WATCHDOG_USEC="30000", WATCHDOG_PID=str(os.getpid()))).started()
    assert [await heard(systemd) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]


async def test_another_process_is_watched_than_this_one(systemd: socket.socket) -> None:
    Notifier(environ(systemd, WATCHDOG_USEC="30000", WATCHDOG_PID="1")).started()
    assert await heard(systemd) == b"READY=1"
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


async def test_a_socket_in_the_abstract_namespace_is_found() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0gateway-{os.getpid()}")
        Notifier({"NOTIFY_SOCKET": f"@gateway-{os.getpid()}"}).started()
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
async def test_nobody_needs_to_listen(environ: dict[str, str]) -> None:
    Notifier({**environ, "WATCHDOG_USEC": "1000"}).started()
