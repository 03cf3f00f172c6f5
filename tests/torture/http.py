"""One request per connection, so that it is plain what became of each."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.torture.wire import Address

TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def post(address: Address, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """Raises OSError or TimeoutError where no complete answer comes."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n"
    return await _ask(address, head, body)


async def get_date(address: Address) -> str:
    """What the server takes for the time."""
    return (await _ask(address, "GET /healthz HTTP/1.1\r\n", b"")).headers["date"]


async def _ask(address: Address, head: str, body: bytes) -> Answer:
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(f"{head}host: torture\r\nconnection: close\r\n\r\n".encode() + body)
            return _parse(await reader.read())
        finally:
            writer.transport.abort()


def _parse(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    if len(body) != int(headers.get("content-length", -1)):
        raise ConnectionResetError("the answer is not complete")
    return Answer(int(first.split()[1]), headers, body)
