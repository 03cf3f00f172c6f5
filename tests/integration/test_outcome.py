"""Failed calls of real clients over real sockets: not done, or unknown."""

import asyncio
import http.client
import smtplib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx
import pytest
import requests
import urllib3

from gateway.worker.effects import CallOutcome
from tests.support.ports import free_port
from tests.support.receiver import answer, receiving
from tests.unit.test_outcome import outcome_of

Call = Callable[[str], Any]
"""Make one request to this URL, and raise what its client raises."""


async def by_httpx(url: str) -> None:
    async with httpx.AsyncClient(follow_redirects=True) as client:
        (await client.post(url)).raise_for_status()


def by_httpx_in_a_thread(url: str) -> Coroutine[Any, Any, None]:
    def call() -> None:
        httpx.post(url, follow_redirects=True).raise_for_status()

    return asyncio.to_thread(call)


def by_requests(url: str) -> Coroutine[Any, Any, None]:
    return asyncio.to_thread(lambda: requests.post(url, timeout=10).raise_for_status())


def by_urllib(url: str) -> Coroutine[Any, Any, None]:
    def call() -> None:
        try:
            urllib.request.urlopen(url, b"", timeout=10).close()  # noqa: S310  # loopback
        except urllib.error.HTTPError as error:
            error.close()
            raise

    return asyncio.to_thread(call)


def by_urllib3_with_retries(url: str) -> Coroutine[Any, Any, None]:
    def call() -> None:
        retry = urllib3.Retry(total=2, status_forcelist=[503], allowed_methods=None)
        with urllib3.PoolManager(retries=retry) as pool:
            pool.request("POST", url)

    return asyncio.to_thread(call)


CLIENTS: Final = [by_httpx, by_httpx_in_a_thread, by_requests, by_urllib]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, CallOutcome.NOT_DONE), (409, CallOutcome.UNKNOWN), (500, CallOutcome.UNKNOWN)],
)
async def test_an_answer_is_understood(client: Call, status: int, expected: CallOutcome) -> None:
    async with receiving(answer(status)) as service:
        assert await outcome_of(lambda: client(service.url)) is expected
        assert len(service.requests) == 1


@pytest.mark.parametrize("client", [*CLIENTS, by_urllib3_with_retries])
async def test_a_refused_connection_is_not_done(client: Call) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await outcome_of(lambda: client(url)) is CallOutcome.NOT_DONE


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_connection_that_breaks_after_the_request_is_unknown(client: Call) -> None:
    async def leave(_: object, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with receiving(leave) as service:
        assert await outcome_of(lambda: client(service.url)) is CallOutcome.UNKNOWN


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_redirect_to_nowhere_was_a_request(client: Call) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/"
    async with receiving(answer(303, location=nowhere)) as service:
        assert await outcome_of(lambda: client(service.url)) is CallOutcome.UNKNOWN
        assert len(service.requests) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_redirect_that_is_refused_was_two_requests(client: Call) -> None:
    async with receiving(answer(303, location="/sent"), answer(404)) as service:
        assert await outcome_of(lambda: client(service.url)) is CallOutcome.UNKNOWN
        assert len(service.requests) == 2


@asynccontextmanager
async def answering_once(status: int) -> AsyncIterator[str]:
    """A service that answers one request and is gone: later connections are refused."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        server.close()
        writer.write(answer(status, connection="close"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def by_requests_with_retries(url: str) -> Coroutine[Any, Any, None]:
    def call() -> None:
        retry = urllib3.Retry(total=2, status_forcelist=[503], allowed_methods=None)
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
            session.post(url, timeout=10)

    return asyncio.to_thread(call)


async def by_httpx_with_retries(url: str) -> None:
    class Retrying(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            while True:
                response = await super().handle_async_request(request)
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return response
                await response.aread()

    async with httpx.AsyncClient(transport=Retrying()) as client:
        await client.post(url)


def by_http_client_and_then_requests(url: str) -> Coroutine[Any, Any, None]:
    def call() -> None:
        first = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        first.request("POST", "/")
        first.getresponse().read()
        first.close()
        requests.post(url, timeout=10)

    return asyncio.to_thread(call)


@pytest.mark.parametrize(
    "call",
    [
        by_requests_with_retries,
        by_urllib3_with_retries,
        by_httpx_with_retries,
        by_http_client_and_then_requests,
    ],
)
async def test_a_refused_connection_after_a_request_that_was_sent_proves_nothing(
    call: Call,
) -> None:
    """The 503 may have been done, whatever the client found when it tried again."""
    async with answering_once(503) as url:
        assert await outcome_of(lambda: call(url)) is CallOutcome.UNKNOWN


async def test_while_another_request_is_under_way_a_refused_one_proves_nothing() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def hold(_: object, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await go.wait()
        writer.write(answer(200))

    async with receiving(hold) as service:
        others: list[asyncio.Task[None]] = []

        async def call() -> None:
            others.append(asyncio.create_task(by_httpx(service.url)))
            await begun.wait()
            await by_httpx(f"http://127.0.0.1:{free_port()}")

        assert await outcome_of(call) is CallOutcome.UNKNOWN
        go.set()
        await asyncio.gather(*others)


async def test_of_two_mails_over_smtp_the_second_one_proves_nothing() -> None:
    """smtplib raises the bare ConnectionRefusedError of the socket."""
    replies: Final = {b"EHLO": b"250 ok", b"MAIL": b"250 ok", b"RCPT": b"250 ok", b"QUIT": b"221"}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        with suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"DATA"):
                    writer.write(b"354 go on\r\n")
                    await reader.readuntil(b"\r\n.\r\n")
                    writer.write(b"250 taken\r\n")
                else:
                    writer.write(replies[line[:4].upper()] + b"\r\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def send(port: int) -> None:
        with smtplib.SMTP("127.0.0.1", port, local_hostname="here", timeout=10) as mail:
            mail.sendmail("a@example.com", "b@example.com", "hello")

    async def send_two() -> None:
        await asyncio.to_thread(send, port)
        await asyncio.to_thread(send, free_port())

    one = await outcome_of(lambda: asyncio.to_thread(send, free_port()))
    two = await outcome_of(send_two)
    server.close()
    assert (one, two) == (CallOutcome.NOT_DONE, CallOutcome.UNKNOWN)
