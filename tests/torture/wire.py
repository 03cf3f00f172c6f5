"""A proxy of our own before each engine: carries bytes, and on order refuses, hangs or swallows."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
Address = tuple[str, int]
CHUNK_BYTES: Final = 256 * 1024


@dataclass(slots=True, eq=False)
class _Link:
    """One connection of the gateway's and its continuation to the engine."""

    gateway: asyncio.StreamWriter
    engine: asyncio.StreamWriter | None = None
    swallowed_bytes: int = 0

    def cut(self) -> None:
        """At once: what waits to be sent is not sent."""
        for side in (self.gateway, self.engine):
            if side is not None:
                side.transport.abort()


class Wire:
    """The only way from the gateway to one engine."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._swallowing = False
        self.port = 0

    async def open(self) -> None:
        """Listens, on the same port as before if there was one."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Cuts every connection and refuses new ones, until it is opened again."""
        if self._server is not None:
            self._server.close()
        self._server = None
        self.cut()

    async def close(self) -> None:
        """For good."""
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang(self) -> None:
        """Takes connections and bytes and lets nothing through, until it flows again."""
        self._flowing.clear()

    def flow(self) -> None:
        """What was held back goes on its way, late."""
        self._flowing.set()

    def swallow(self) -> None:
        """Carries what the gateway says, and drops what the engine answers."""
        self._swallowing = True

    def cut_swallowed(self) -> int:
        """Cuts the connections that lost an answer; returns how many."""
        self._swallowing = False
        lost = [link for link in self._links if link.swallowed_bytes]
        for link in lost:
            link.cut()
        return len(lost)

    def cut(self) -> None:
        for link in self._links:
            link.cut()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, _Link(writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, gateway: asyncio.StreamReader, link: _Link) -> None:
        self._links.add(link)
        try:
            await self._flowing.wait()
            engine, link.engine = await asyncio.open_unix_connection(self._engine)
            ways = [
                asyncio.create_task(self._carry_requests(gateway, link.engine)),
                asyncio.create_task(self._carry_answers(engine, link)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:  # the engine is away
            return
        finally:
            self._links.discard(link)
            for side in (link.gateway, link.engine):
                if side is not None:
                    side.close()

    async def _carry_requests(
        self, gateway: asyncio.StreamReader, engine: asyncio.StreamWriter
    ) -> None:
        while chunk := await gateway.read(CHUNK_BYTES):
            await self._flowing.wait()
            engine.write(chunk)
            await engine.drain()

    async def _carry_answers(self, engine: asyncio.StreamReader, link: _Link) -> None:
        while chunk := await engine.read(CHUNK_BYTES):
            await self._flowing.wait()
            # An answer with a hole in it would be another fault: once swallowing, always.
            if self._swallowing or link.swallowed_bytes:
                link.swallowed_bytes += len(chunk)
                continue
            link.gateway.write(chunk)
            await link.gateway.drain()
