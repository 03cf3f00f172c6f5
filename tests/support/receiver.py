"""Somebody's own HTTP service, on a real socket: answers as told, and keeps what it was sent."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson

OK: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
Reply = bytes | Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


def answer(status: int, content: object = b"", **headers: str) -> bytes:
    """The bytes of an answer; what is not bytes goes as JSON."""
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Receiver:
    """Answers with `replies` in turn, the last one for ever."""

    replies: list[Reply] = field(default_factory=lambda: [OK])
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while request := await _read(reader):
                self.requests.append(request)
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                if not isinstance(reply, bytes):
                    await reply(request, writer)
                    break
                writer.write(reply)
                await writer.drain()
                if b"connection: close" in reply:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._open.discard(writer)

    async def leave(self) -> None:
        """Cuts what is still open."""
        while self._open:
            for writer in self._open:
                writer.transport.abort()
            await asyncio.sleep(0)


@asynccontextmanager
async def receiving(*replies: Reply, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """One that listens until the block ends."""
    receiver = Receiver(replies=list(replies) or [OK])
    server = await asyncio.start_server(receiver.take, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.leave()


async def _read(reader: asyncio.StreamReader) -> Received | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    lines = [line.partition(":") for line in head[1:] if line]
    headers = {name.lower(): value.strip() for name, _, value in lines}
    assert len(headers) == len(lines), f"a header twice: {head}"
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(path=head[0].split(" ")[1], headers=headers, body=body)
