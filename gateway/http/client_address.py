"""The address of a client, behind proxies that are trusted."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, ip_network
from typing import Final

import structlog
from starlette.types import Scope

from gateway.base.networks import LONGEST_ADDRESS, Address, Networks, read_address

MOST_HOPS: Final = 32
LONGEST_FORWARDED: Final = 4096

_PORT: Final = r"(?::[0-9]{1,5})?"
_BRACKETED: Final = re.compile(rf"\[([^\[\]]*:[^\[\]]*)\]{_PORT}")
_WITH_PORT: Final = re.compile(r"([0-9.]+):[0-9]{1,5}")
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_PAIR: Final = re.compile(rf"[ \t]*({_WORD})=({_WORD}|{_QUOTED})[ \t]*([,;]|\Z)")


def read_hop(text: str) -> Address | None:
    """Parse an address as proxies write it: with a port, in brackets, with a zone.

    Return None for anything else.
    """
    if len(text) > LONGEST_ADDRESS:
        return None
    match = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    return read_address(match[1] if match else text)


def hops_of_list(lines: Sequence[bytes]) -> Iterator[str]:
    """Yield the hops of X-Forwarded-For, the nearest first.

    Past the bound, the rest is one item.
    """
    for line in reversed(lines):
        for hop in reversed(line.decode("latin-1").rsplit(",", MOST_HOPS)):
            yield hop.strip(" \t")


def hops_of_pairs(lines: Sequence[bytes]) -> Iterator[str]:
    """Yield the hops of Forwarded, the nearest first.

    A malformed line yields an invalid address.
    """
    for line in reversed(lines):
        yield from reversed(_for_values(line.decode("latin-1")))


def _for_values(line: str) -> list[str]:
    """Return the `for` value of each element.

    A quote that a client left open must not hide what a proxy appended, so any error makes the
    whole line invalid.
    """
    if len(line) > LONGEST_FORWARDED:
        return [""]
    values: list[str] = []
    found: str | None = None
    at, end = 0, ";"
    while end:
        match = _PAIR.match(line, at)
        if match is None:
            return [""]
        name, value, end = match.groups()
        at = match.end()
        if name.lower() == "for":
            if found is not None:
                return [""]
            found = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] == '"' else value
        if end != ";":
            values.append(found or "")
            found = None
    return values


FOR_LIST: Final = b"x-forwarded-for"
FORWARDED: Final = b"forwarded"
KNOWN: Final = "gateway.client"
REMEMBERED: Final = 4096
SHORT_LINE: Final = 128
"""In bytes. Longer header lines are not cached, so that the cache stays small."""
MOST_TOLD: Final = 8
"""Maximum number of untrusted peers for which a warning about forwarded headers is logged."""

OWN: Final = Networks(
    tuple(
        ip_network(text)
        for text in (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "::1/128",
            "fc00::/7",
            "fe80::/10",
        )
    )
)
"""Private and link-local networks.

A foreign client does not connect from them, but one's own proxy does.
"""

log = structlog.get_logger("gateway.receive")


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """The address of the sender of a request."""

    address: Address
    group: int
    """The key under which requests are counted: the whole IPv4 address, or the /64 of an IPv6
    address, since one customer usually has all of a /64.
    """
    is_proxy: bool = False
    """Whether the forwarded headers of this peer are trusted."""


class Addresses:
    """Resolve client addresses on demand. A request whose address is not needed costs nothing."""

    def __init__(self, trusted: Networks | None) -> None:
        self._trusted = trusted or Networks()
        self._are_proxies_known = trusted is not None
        self._read = lru_cache(maxsize=REMEMBERED)(self._make)
        self._follow = lru_cache(maxsize=REMEMBERED)(self._follow_line)
        self._told: set[Address] = set()

    def _make(self, text: str) -> ClientAddress | None:
        """Return the client, or None if the text is not an address."""
        address = read_hop(text)
        if address is None:
            return None
        bits = int(address)
        group = bits if isinstance(address, IPv4Address) else 1 << 64 | bits >> 64
        return ClientAddress(address, group, address in self._trusted)

    def of(self, scope: Scope) -> ClientAddress | None:
        """Return the client, or None if the peer has no address, as on a Unix socket."""
        peer = self._peer(scope)
        if peer is None or not peer.is_proxy:
            return peer
        if KNOWN not in scope:
            scope[KNOWN] = self._behind(scope) or peer
        client: ClientAddress = scope[KNOWN]
        return client

    def is_masked(self, scope: Scope) -> bool:
        """Return whether the address is most likely that of our own, unconfigured proxy.

        All clients would then share this address. A client from outside cannot fake this. One in
        our own network can, and would guess tokens without being counted: so if any proxies are
        configured, no other one is assumed.
        """
        peer = self._peer(scope)
        is_proxy = peer is not None and peer.address in OWN and self.tell_of_proxy(scope)
        return is_proxy and not self._are_proxies_known

    def tell_of_proxy(self, scope: Scope) -> bool:
        """Return whether an untrusted peer sends forwarded headers, and warn once per peer."""
        peer = self._peer(scope)
        if peer is None or peer.is_proxy or not _forwards(scope):
            return False
        if peer.address not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(peer.address)
            log.warning(
                "forwarded_headers_not_believed",
                peer=str(peer.address),
                advice="if that is your proxy, name it in GATEWAY_TRUSTED_PROXIES: now its"
                " address stands for everybody behind it",
            )
        return True

    def _peer(self, scope: Scope) -> ClientAddress | None:
        peer = scope.get("client")
        return None if peer is None else self._read(peer[0])

    def _behind(self, scope: Scope) -> ClientAddress | None:
        """Return the client behind the proxies, or None if the headers cannot be trusted."""
        lists = [value for name, value in scope["headers"] if name == FOR_LIST]
        pairs = [value for name, value in scope["headers"] if name == FORWARDED]
        if len(lists) == 1 and not pairs and len(lists[0]) <= SHORT_LINE:
            return self._follow(lists[0])
        # If both headers are present, they must agree: a proxy that writes one of them may pass the
        # other on unchanged from an untrusted client.
        found = [self._first_untrusted(hops_of_list(lists))] if lists else []
        found += [self._first_untrusted(hops_of_pairs(pairs))] if pairs else []
        return found[0] if found and found[0] == found[-1] else None

    def _follow_line(self, line: bytes) -> ClientAddress | None:
        return self._first_untrusted(hops_of_list([line]))

    def _first_untrusted(self, hops: Iterator[str]) -> ClientAddress | None:
        """Return the nearest hop that is not trusted, or the furthest hop if all are trusted."""
        client = None
        for number, hop in enumerate(hops):
            client = self._read(hop) if len(hop) <= LONGEST_ADDRESS else None
            if client is None or number == MOST_HOPS:
                return None
            if not client.is_proxy:
                return client
        return client


def _forwards(scope: Scope) -> bool:
    return any(name in (FOR_LIST, FORWARDED) for name, _ in scope["headers"])
