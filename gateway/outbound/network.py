"""Connects to the very address that was checked, so that a second look-up cannot lead elsewhere."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Final

import httpcore
from httpcore import SOCKET_OPTION

from gateway.errors import AddressRefused
from gateway.outbound.addresses import Address, refusal, refusal_of_host

ADDRESS_S: Final = 3.0
"""After which the next address of a name is tried: not every IPv6 address leads somewhere."""

Resolve = Callable[[str, int], Awaitable[list[Address]]]


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host, in the order in which the system would try them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(socket_address[0]) for *_, socket_address in found))


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """TCP to where something may be sent. TLS on top of it is told the name, not the address."""

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
        """Raises AddressRefused where any of the host's addresses is none to send to."""
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
