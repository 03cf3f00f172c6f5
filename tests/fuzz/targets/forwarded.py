"""What a stranger writes into X-Forwarded-For and Forwarded, before a trusted proxy adds to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network

from starlette.types import Scope

from gateway.base.networks import Networks
from gateway.http.client_address import FOR_LIST, FORWARDED, Addresses
from tests.fuzz.target import Check, Finding, Stage, Target, header, join, parts

PROXY, CLIENT = "10.0.0.1", "203.0.113.7"


def _scope(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "client": (PROXY, 1), "headers": list(headers)}


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    addresses = Addresses(Networks((ip_network("10.0.0.0/8"),)))

    def check(data: bytes) -> None:
        several, pairs = (header(part).encode("latin-1") for part in parts(data, 2))
        addresses.of(_scope((FOR_LIST, several), (FORWARDED, pairs)))
        for name, value in ((FOR_LIST, several), (FORWARDED, pairs)):
            addresses.of(_scope((name, value)))
        client = addresses.of(_scope((FOR_LIST, several + b", " + CLIENT.encode())))
        if client is None or str(client.address) != CLIENT:
            raise Finding(f"X-Forwarded-For: {several!r} made {client} of the client")
        client = addresses.of(_scope((FORWARDED, pairs + b", for=" + CLIENT.encode())))
        if client is not None and str(client.address) not in (CLIENT, PROXY):
            raise Finding(f"Forwarded: {pairs!r} made {client} of the client")

    yield check


def _seeds() -> list[bytes]:
    return [
        join(b"198.51.100.1", b"for=198.51.100.1"),
        join(b"10.0.0.2, 10.0.0.3", b'for="[2001:db8::1]:80";proto=https'),
        join(b"[2001:db8::1%eth0]:80", b'for="_hidden", for=unknown'),
        join(b"1.2.3.4:99999, ::ffff:10.0.0.1", b'for="a\\"b'),
        join(b"," * 40, b"for=" * 10),
        join(b"0x7f.1, 127.1, 010.0.0.1", b"for=10.0.0.1;for=10.0.0.2"),
    ]


TARGET = Target("forwarded", _seeds, _open)
