"""What the kernel knows of a connection within this machine."""

import asyncio
from pathlib import Path

from tests.support.waiting import until


async def read_by_server(writer: asyncio.StreamWriter) -> None:
    """Wait until the process at the other end has read everything that was written so far."""
    await writer.drain()
    client: tuple[str, int] = writer.get_extra_info("sockname")
    server: tuple[str, int] = writer.get_extra_info("peername")
    await until(lambda: _unread(client[1], server[1]) == 0)


def _unread(client_port: int, server_port: int) -> int:
    """Return how many bytes are in the queues of both ends of a connection over IPv4.

    In /proc/net/tcp each end has a line: local address, remote address, state, then the bytes that
    are not acknowledged and those that are not read yet, all in hexadecimal digits.
    """
    waiting = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        ports = {int(end.partition(":")[2], 16) for end in (local, remote)}
        if ports == {client_port, server_port}:
            waiting += sum(int(queue, 16) for queue in queues.split(":"))
    return waiting
