"""Where a request comes from: the peer, or whom the trusted proxies before us name."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, ip_network
from typing import Final

import structlog
from starlette.types import Scope

from gateway.notation.networks import LONGEST_ADDRESS, Address, Networks
from gateway.receive.forwarded import MOST_HOPS, hops_of_list, hops_of_pairs, read_hop

FOR_LIST: Final = b"x-forwarded-for"
FORWARDED: Final = b"forwarded"
KNOWN: Final = "gateway.client"
REMEMBERED: Final = 4096
SHORT_LINE: Final = 128
"""Bytes. Longer lines are read anew each time: what is remembered is bounded."""
MOST_TOLD: Final = 8
"""Peers of which is said that they forward and are not trusted."""

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
"""Where no stranger connects from, but a proxy of one's own does."""

log = structlog.get_logger("gateway.receive")


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, as far as an address tells."""

    address: Address
    group: int
    """What shares one count: an IPv4 address; of IPv6 the /64, which one customer has whole."""
    is_proxy: bool = False
    """Whether what it says of others is believed."""


class Addresses:
    """Reads addresses where somebody wants to know; a request of which nobody does pays nothing."""

    def __init__(self, trusted: Networks | None) -> None:
        self._trusted = trusted or Networks()
        self._read = lru_cache(maxsize=REMEMBERED)(self._make)
        self._follow = lru_cache(maxsize=REMEMBERED)(self._follow_line)
        self._told: set[Address] = set()

    def _make(self, text: str) -> Client | None:
        """None where the text is no address."""
        address = read_hop(text)
        if address is None:
            return None
        bits = int(address)
        group = bits if isinstance(address, IPv4Address) else 1 << 64 | bits >> 64
        return Client(address, group, address in self._trusted)

    def of(self, scope: Scope) -> Client | None:
        """The client. None where the peer has no address: a Unix socket."""
        peer = self._peer(scope)
        if peer is None or not peer.is_proxy:
            return peer
        if KNOWN not in scope:
            scope[KNOWN] = self._behind(scope) or peer
        client: Client = scope[KNOWN]
        return client

    def is_masked(self, scope: Scope) -> bool:
        """Whether the address is most likely that of a proxy of ours that nobody has named: all
        the world would share it. From outside it cannot be feigned."""
        peer = self._peer(scope)
        return peer is not None and peer.address in OWN and self.tell_of_proxy(scope)

    def tell_of_proxy(self, scope: Scope) -> bool:
        """Whether an untrusted peer says for whom it forwards; says so itself, once per peer."""
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

    def _peer(self, scope: Scope) -> Client | None:
        peer = scope.get("client")
        return None if peer is None else self._read(peer[0])

    def _behind(self, scope: Scope) -> Client | None:
        """None where nothing is said that can be believed."""
        lists = [value for name, value in scope["headers"] if name == FOR_LIST]
        pairs = [value for name, value in scope["headers"] if name == FORWARDED]
        if len(lists) == 1 and not pairs and len(lists[0]) <= SHORT_LINE:
            return self._follow(lists[0])
        # Where both are there they must agree: a proxy that writes one of them may pass on the
        # other as a stranger wrote it.
        found = [self._first_untrusted(hops_of_list(lists))] if lists else []
        found += [self._first_untrusted(hops_of_pairs(pairs))] if pairs else []
        return found[0] if found and found[0] == found[-1] else None

    def _follow_line(self, line: bytes) -> Client | None:
        return self._first_untrusted(hops_of_list([line]))

    def _first_untrusted(self, hops: Iterator[str]) -> Client | None:
        """The nearest that is no proxy of ours; where all are, the furthest of them."""
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
