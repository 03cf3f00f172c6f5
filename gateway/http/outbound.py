"""The outbound HTTP client: it connects only to addresses that were checked."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from types import TracebackType
from typing import Final, Self

import httpcore
import httpx
from httpcore import SOCKET_OPTION

from gateway.base.errors import AddressRefused, PushFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A service to push to. Its repr shows nothing, because any part can contain a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """Signing keys. Without a key, requests are not signed."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values that must not be shown if the service echoes them."""


Address = IPv4Address | IPv6Address

REFUSED: Final[Mapping[IPv4Network | IPv6Network, str]] = {
    IPv4Network("169.254.0.0/16"): "link-local, where clouds keep credentials",
    IPv6Network("fe80::/10"): "link-local, where clouds keep credentials",
    IPv4Network("100.100.100.200/32"): "the metadata service of Alibaba Cloud",
    IPv4Network("192.0.0.192/32"): "the metadata service of Oracle Cloud",
    IPv4Network("168.63.129.16/32"): "the host of an Azure machine",
    IPv6Network("fd00:ec2::/32"): "the metadata service of AWS",
    IPv6Network("fd20:ce::254/128"): "the metadata service of Google Cloud",
    IPv6Network("fd00:42::42/128"): "the metadata service of Scaleway",
    IPv4Network("0.0.0.0/8"): "unspecified",
    IPv6Network("::/128"): "unspecified",
    IPv4Network("224.0.0.0/4"): "multicast",
    IPv6Network("ff00::/8"): "multicast",
    IPv4Network("255.255.255.255/32"): "broadcast",
}
"""Loopback and private networks are not listed, because users run their own services there."""

REFUSED_NAMES: Final = frozenset({"metadata.google.internal", "metadata.goog"})
METADATA: Final = "the metadata service of a cloud"

# IPv6 networks whose addresses carry an IPv4 address, to which a router or the system may translate
# them. The value is the number of bits below the IPv4 address.
MAPPED: Final[Mapping[IPv6Network, int]] = {
    IPv6Network("::ffff:0:0/96"): 0,  # RFC 4291, IPv4-mapped
    IPv6Network("::/96"): 0,  # RFC 4291, IPv4-compatible
    IPv6Network("::ffff:0:0:0/96"): 0,  # RFC 2765, IPv4-translated
    IPv6Network("64:ff9b::/96"): 0,  # RFC 6052, NAT64
    IPv6Network("64:ff9b:1::/48"): 0,  # RFC 8215, local-use NAT64
    IPv6Network("2002::/16"): 80,  # RFC 3056, 6to4
}
LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
SHORT_PREFIXES: Final = (48, 56, 64)
TEREDO: Final = IPv6Network("2001::/32")
ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
LOW_32: Final = 0xFFFFFFFF


def refusal(address: Address) -> str | None:
    """Return the reason why nothing is sent to this address, or None if it is allowed."""
    if isinstance(address, IPv6Address) and address.is_loopback:  # ::1 would match ::/96 as 0.0.0.1
        return None
    for meant in (address, *_carried(address)):
        for network, what in REFUSED.items():
            if meant.version == network.version and meant in network:
                return what
    return None


def literal(host: str) -> Address | None:
    """Return the address that a URL's host spells out, or None for a name.

    The notation is that of the operating system: 2852039166, 0xa9fea9fe and
    0251.0376.0251.0376 are 169.254.169.254.
    """
    try:
        return ip_address(host.strip("[]"))
    except (AddressValueError, ValueError):
        pass
    try:
        return IPv4Address(socket.inet_aton(host.removesuffix(".")))
    except (OSError, UnicodeEncodeError):
        return None


def refusal_of_host(host: str) -> str | None:
    """Return the reason why nothing is sent to a URL's host, as far as
    known without a DNS lookup.
    """
    if host.lower().removesuffix(".") in REFUSED_NAMES:
        return METADATA
    address = literal(host)
    return None if address is None else refusal(address)


def _carried(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses at which a packet to this address may arrive."""
    if isinstance(address, IPv4Address):
        return
    bits = int(address)
    for network, shift in MAPPED.items():
        if address in network:
            yield IPv4Address(bits >> shift & LOW_32)
    if address in LOCAL_NAT64:  # RFC 6052, 2.2: after a shorter prefix, around bits 64 to 71
        without = bits >> 64 << 56 | bits & 0xFFFFFFFFFFFFFF
        for prefix in SHORT_PREFIXES:
            yield IPv4Address(without >> 120 - prefix - 32 & LOW_32)
    if address in TEREDO:  # RFC 4380: the client's, inverted, and the server's
        yield IPv4Address(~bits & LOW_32)
        yield IPv4Address(bits >> 64 & LOW_32)
    if bits >> 32 & LOW_32 in ISATAP:  # RFC 5214, under any prefix
        yield IPv4Address(bits & LOW_32)


ADDRESS_S: Final = 3.0
"""Connect timeout per address before the next one is tried: not every IPv6 address is reachable."""

Resolve = Callable[[str, int], Awaitable[list[Address]]]


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host in the order in which the system would try them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(socket_address[0]) for *_, socket_address in found))


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """TCP connections to allowed addresses only. TLS on top uses the host name, not the address."""

    def __init__(
        self, resolve: Resolve = resolve, network: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self._resolve = resolve
        self._network = network or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's own signature)
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the host. Raises AddressRefused if any of its addresses is not allowed."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._checked(host, port)
                return await self._connect(addresses, port, local_address, socket_options)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection within {timeout:g} s") from None

    async def _checked(self, host: str, port: int) -> list[Address]:
        _refuse(refusal_of_host(host), host)
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "no such name"
            raise httpcore.ConnectError(f"its name has no address: {reason}") from None
        for address in addresses:
            _refuse(refusal(address), str(address))
        return addresses

    async def _connect(
        self,
        addresses: list[Address],
        port: int,
        local_address: str | None,
        socket_options: Iterable[SOCKET_OPTION] | None,
    ) -> httpcore.AsyncNetworkStream:
        error: Exception = httpcore.ConnectError("its name has no address")
        for number, address in enumerate(addresses, start=1):
            patience_s = ADDRESS_S if number < len(addresses) else None
            try:
                return await self._network.connect_tcp(
                    str(address), port, patience_s, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error


def _refuse(what: str | None, where: str) -> None:
    if what is not None:
        raise AddressRefused(f"nothing is sent to {where}: it is {what}")


LARGEST_ANSWER_BYTES: Final = 64 * 1024
CONNECT_S: Final = 10.0
IDLE_S: Final = 4.0
"""Idle connections are closed before Node's keep-alive timeout of five seconds, so that no request
meets a connection that the server is closing.
"""
TROUBLE: Final = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    OSError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundResponse:
    """Response of a service."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes | None = field(repr=False)
    """None if the body exceeds LARGEST_ANSWER_BYTES."""

    @property
    def is_acknowledged(self) -> bool:
        return 200 <= self.status < 300


class OutboundClient:
    """HTTP client for all pushes of a process, with a connection pool per origin."""

    def __init__(
        self, *, most_connections: int, network: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self._most_connections = most_connections
        self._network = network or CheckedNetwork()
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}
        self._ssl: ssl.SSLContext | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> OutboundResponse:
        """Send the request once.

        Raises PushFailed, whose text contains nothing of the URL or the headers. The
        caller sets the timeout.
        """
        parsed = httpx.URL(url)
        target = httpcore.URL(
            scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
        )
        sent = [("host", parsed.netloc.decode()), *headers.items()]
        try:
            async with self._pool(target.origin).stream(
                "POST",
                target,
                headers=[(name.encode(), value.encode()) for name, value in sent],
                content=body,
                extensions={"timeout": {"connect": CONNECT_S}},
            ) as response:
                return await _read(response)
        except TROUBLE as error:
            told = _told(error)
        raise PushFailed(told)

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _pool(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionPool:
        pool = self._pools.get(str(origin))
        if pool is None:
            pool = self._pools[str(origin)] = httpcore.AsyncConnectionPool(
                ssl_context=self._tls() if origin.scheme == b"https" else None,
                max_connections=self._most_connections,
                max_keepalive_connections=self._most_connections,
                keepalive_expiry=IDLE_S,
                network_backend=self._network,
            )
        return pool

    def _tls(self) -> ssl.SSLContext:
        """Create the TLS context once. It honors SSL_CERT_FILE and SSL_CERT_DIR."""
        self._ssl = self._ssl or httpx.create_ssl_context()
        return self._ssl


async def _read(response: httpcore.Response) -> OutboundResponse:
    return OutboundResponse(
        status=response.status,
        headers={
            name.decode("ascii", "replace").lower(): value.decode("latin-1")
            for name, value in response.headers
        },
        body=await _read_body(response),
    )


async def _read_body(response: httpcore.Response) -> bytes | None:
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            return None
    return bytes(body)


def _told(error: Exception) -> str:
    """Describe an error.

    A request that cannot be sent may contain a secret, so it is not quoted.
    """
    match error:
        case httpcore.ConnectTimeout() | httpcore.ConnectError():
            return f"cannot connect: {error}"
        case httpcore.LocalProtocolError():
            return "the request is none that HTTP can carry"
        case httpcore.RemoteProtocolError():
            return f"the answer is no HTTP: {error}"
    return f"the connection broke: {error or type(error).__name__}"
