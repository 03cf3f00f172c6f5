"""Good senders, whose requests must be answered whatever the others do."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from uuid import uuid4

from tests.support.processes import Serving, stripe_request
from tests.support.waiting import until

HOST = "127.0.0.1"
PAUSE_S = 0.02
PATIENCE_S = 30.0


def port_of(serving: Serving) -> int:
    port = urlsplit(serving.url).port
    assert port is not None
    return port


def request_bytes(event_id: str) -> bytes:
    """A signed Stripe event as it goes over the wire."""
    body, headers = stripe_request(event_id)
    head = ["POST /webhooks/stripe HTTP/1.1", "host: gateway", f"content-length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + body


class GoodSenders:
    """One that keeps its connection, and one that takes a new one for each event."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: Counter[str] = Counter()
        """How often each status was the answer; what went wrong is counted by its name."""

    async def answered(self, more: int) -> None:
        """Waits for so many more answers, and sees that every one was a 200."""
        enough = self.answers.total() + more
        await until(lambda: self.answers.total() >= enough, within_s=60)
        assert set(self.answers) == {"200"}, self.answers

    async def send_forever(self) -> None:
        await asyncio.gather(self._insist(self._keep_one), self._insist(self._take_new))

    async def _insist(self, send: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await send()
            except (OSError, EOFError) as error:
                self.answers[type(error).__name__] += 1

    async def _keep_one(self) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        with contextlib.closing(writer):
            while True:
                await self._send(reader, writer)

    async def _take_new(self) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        with contextlib.closing(writer):
            await self._send(reader, writer)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request_bytes(f"evt_{uuid4().hex}"))
        async with asyncio.timeout(PATIENCE_S):
            self.answers[await read_status(reader)] += 1
        await asyncio.sleep(PAUSE_S)


async def read_status(reader: asyncio.StreamReader) -> str:
    """Of the next answer, read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return head.split()[1].decode()


@asynccontextmanager
async def good_senders(serving: Serving) -> AsyncIterator[GoodSenders]:
    """Senders at work."""
    senders = GoodSenders(port_of(serving))
    sending = asyncio.create_task(senders.send_forever())
    try:
        yield senders
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
