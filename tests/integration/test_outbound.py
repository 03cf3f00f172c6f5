"""The client that pushes, against real sockets: where it connects to, and what it puts up with."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Any

import httpcore
import pytest

from gateway.base.errors import AddressRefused, PushFailed
from gateway.http.outbound import (
    LARGEST_ANSWER_BYTES,
    Address,
    CheckedNetwork,
    OutboundClient,
    Resolve,
)
from tests.support.receiver import OK, Received, answer, receiving
from tests.support.waiting import PATIENCE_S, until

LOOPBACK = ip_address("127.0.0.1")
METADATA = ip_address("169.254.169.254")


class Watched(httpcore.AsyncNetworkBackend):
    """Real connections, and where they went."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, *args: Any, **kwargs: Any
    ) -> httpcore.AsyncNetworkStream:
        self.hosts.append(host)
        assert host.startswith("127."), "this machine only, also without the safeguards"
        return await self._network.connect_tcp(host, *args, **kwargs)


def resolving(*answers: Iterable[Address]) -> Resolve:
    """A name server that says something else each time, and the last for ever."""
    remaining = [list(addresses) for addresses in answers]

    async def resolve(host: str, port: int) -> list[Address]:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return resolve


def client(resolve: Resolve | None = None, watched: Watched | None = None) -> OutboundClient:
    network = CheckedNetwork(resolve, watched) if resolve else CheckedNetwork(network=watched)
    return OutboundClient(most_connections=4, network=network)


async def push(url: str, **kwargs: Any) -> int:
    async with client(**kwargs) as pushing, asyncio.timeout(PATIENCE_S):
        return (await pushing.post(url, {"content-type": "text/plain"}, b"body")).status


async def test_what_is_sent_arrives_with_its_host() -> None:
    async with receiving() as receiver:
        assert await push(f"{receiver.url}/a%20b?c=d") == 204
    [request] = receiver.requests
    assert request.path == "/a%20b?c=d"
    assert request.body == b"body"
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "content-type": "text/plain",
        "content-length": "4",
    }


async def test_it_connects_to_the_very_address_that_was_checked() -> None:
    watched = Watched()
    async with receiving() as receiver:
        url = f"http://orders.example:{receiver.port}/"
        resolve = resolving([LOOPBACK], [METADATA])
        assert await push(url, resolve=resolve, watched=watched) == 204
    assert watched.hosts == ["127.0.0.1"]
    assert receiver.requests[0].headers["host"] == f"orders.example:{receiver.port}"


async def test_a_name_that_comes_to_mean_a_metadata_service_is_refused() -> None:
    watched = Watched()
    resolve = resolving([LOOPBACK], [METADATA])
    async with receiving() as receiver, client(resolve, watched) as pushing:
        url = f"http://rebinding.example:{receiver.port}/"
        receiver.replies = [answer(200, connection="close")]
        assert (await pushing.post(url, {}, b"")).status == 200
        with pytest.raises(AddressRefused, match=r"169\.254\.169\.254.*link-local"):
            await pushing.post(url, {}, b"")
    assert watched.hosts == ["127.0.0.1"]
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "addresses",
    [
        ["169.254.169.254"],
        ["127.0.0.1", "169.254.169.254"],
        ["::ffff:169.254.169.254"],
        ["64:ff9b::a9fe:a9fe"],
        ["2002:a9fe:a9fe::"],
        ["fe80::1"],
        ["fd00:ec2::254"],
        ["100.100.100.200"],
        ["0.0.0.0"],  # noqa: S104 (nothing is bound to it)
        ["255.255.255.255"],
    ],
)
async def test_a_name_with_one_bad_address_is_refused_before_any_connection(
    addresses: list[str],
) -> None:
    watched = Watched()
    resolve = resolving([ip_address(text) for text in addresses])
    with pytest.raises(AddressRefused):
        await push("http://orders.example/", resolve=resolve, watched=watched)
    assert watched.hosts == []


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "0"),
        *("::ffff:169.254.169.254", "fe80::1", "metadata.google.internal"),
    ],
)
async def test_no_spelling_of_a_bad_address_gets_through(host: str) -> None:
    watched = Watched()
    with pytest.raises(AddressRefused):
        await CheckedNetwork(network=watched).connect_tcp(host, 80, timeout=10)
    assert watched.hosts == []


async def test_the_systems_own_reading_of_a_number_is_what_is_checked() -> None:
    async with receiving() as receiver:
        assert await push(f"http://2130706433:{receiver.port}/") == 204  # 127.0.0.1


async def test_a_second_address_is_tried_where_the_first_refuses() -> None:
    async with receiving() as receiver:
        resolve = resolving([ip_address("127.0.0.9"), LOOPBACK])
        assert await push(f"http://orders.example:{receiver.port}/", resolve=resolve) == 204


async def test_a_second_address_is_tried_where_the_first_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its queue of connections is full, so that it neither accepts nor refuses."""
    monkeypatch.setattr("gateway.http.outbound.ADDRESS_S", 0.05)
    async with receiving() as receiver:
        silent = socket.create_server(("127.0.0.9", receiver.port), backlog=0)
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.9", receiver.port))
        try:
            resolve = resolving([ip_address("127.0.0.9"), LOOPBACK])
            assert await push(f"http://orders.example:{receiver.port}/", resolve=resolve) == 204
        finally:
            for opened in (silent, *callers):
                opened.close()


async def test_pushes_that_are_given_up_leave_no_connection_behind() -> None:
    async def hang(_: Received, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    async with receiving(*[hang] * 6, OK) as receiver, client() as pushing:
        tasks = [asyncio.create_task(pushing.post(receiver.url, {}, b"")) for _ in range(6)]
        await until(lambda: len(receiver.requests) == 4)  # the other two wait for a connection
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        receiver.replies = [OK]
        async with asyncio.timeout(PATIENCE_S):
            answers = [await pushing.post(receiver.url, {}, b"") for _ in range(8)]
    assert {found.status for found in answers} == {204}


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with receiving() as receiver:
        assert await push(receiver.url) == 204


async def test_connections_are_kept_and_a_redirect_is_just_an_answer() -> None:
    redirect = answer(302, location="http://169.254.169.254/")
    async with receiving(redirect) as receiver, client() as pushing:
        for _ in range(3):
            assert (await pushing.post(receiver.url, {}, b"")).status == 302
    assert receiver.connections == 1
    assert len(receiver.requests) == 3


async def test_an_answer_is_read_up_to_its_limit_and_no_further() -> None:
    async def never_end(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()

    whole = answer(200, b"x" * LARGEST_ANSWER_BYTES)
    async with receiving(whole, never_end) as receiver, client() as pushing:
        read = await pushing.post(receiver.url, {}, b"")
        assert len(read.body or b"") == LARGEST_ANSWER_BYTES
        cut = await pushing.post(receiver.url, {}, b"")
        assert (cut.status, cut.body) == (200, None)


async def _close(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _close_within(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this")
    await writer.drain()


async def _reset(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize(
    "reply",
    [
        b"garbage\r\n\r\n",
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"HTTP/1.1 2000 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        _close,
        _close_within,
        _reset,
    ],
    ids=["text", "bytes", "status", "headers", "chunks", "length", "close", "cut", "reset"],
)
async def test_an_answer_that_is_none_is_a_failure_in_words(
    reply: bytes | Callable[[Received, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    async with receiving(reply) as receiver:
        with pytest.raises(PushFailed) as failed:
            await push(f"{receiver.url}/token-in-the-path")
    assert "token-in-the-path" not in str(failed.value)
    assert len(str(failed.value)) < 1000


async def test_nobody_there_is_a_failure_in_words() -> None:
    async with receiving() as receiver:
        pass
    with pytest.raises(PushFailed, match="cannot connect"):
        await push(receiver.url)


async def test_a_name_without_an_address_is_a_failure_in_words() -> None:
    with pytest.raises(PushFailed, match="its name has no address"):
        await push("http://nowhere.invalid/")


def _certificate(directory: Any, *names: str) -> tuple[str, str]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    files = str(directory / "certificate.pem"), str(directory / "key.pem")
    (directory / "certificate.pem").write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
    )
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


async def test_tls_is_for_the_name_and_not_for_the_address(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = _certificate(tmp_path, "orders.example")
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.sni_callback = lambda _, name, __: asked.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    pushing = client(resolving([LOOPBACK]))
    async with receiving(tls=context) as receiver, pushing:
        port = receiver.port
        assert (await pushing.post(f"https://orders.example:{port}/", {}, b"")).status == 204
        with pytest.raises(PushFailed, match=r"cannot connect.*certificate"):
            await pushing.post(f"https://other.example:{port}/", {}, b"")
    assert asked == ["orders.example", "other.example"]
