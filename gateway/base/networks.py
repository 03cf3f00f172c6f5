"""Hosts, addresses and networks in configuration, and how they are written."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema

from gateway.base.problems import Unexpected, describe


def split_hosts(url: str) -> list[str]:
    """Return one URL per host: `postgresql://user@a:1,b:2/name` names two, one of them writable."""
    scheme, mark, rest = url.partition("://")
    end = min((place for place in map(rest.find, "/?#") if place >= 0), default=len(rest))
    credentials, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}{mark}{credentials}{at}{host}{rest[end:]}" for host in hosts.split(",")]


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_ADDRESS: Final = 64
"""In characters. The longest meaningful address has 45, plus a zone."""
MOST_NETWORKS: Final = 10_000
MAPPED: Final = bytes(10) + b"\xff\xff"
MAPPED_BITS: Final = 96
NETWORK_EXPECTED: Final = (
    "an address or a network such as 3.18.12.63, 192.30.252.0/22 or 2001:db8::/32"
)
NETWORK_PATTERN: Final = r"[0-9A-Fa-f:.]{2,45}(/[0-9]{1,3})?"


def read_address(text: str) -> Address | None:
    """Parse an address without its zone, or return None. An IPv4-mapped address becomes IPv4.

    It uses inet_pton, which takes a tenth of the time of `ip_address`: clients can send many
    addresses.
    """
    if len(text) > LONGEST_ADDRESS:
        return None
    text = text.partition("%")[0]
    try:
        if ":" not in text:
            return IPv4Address(socket.inet_pton(socket.AF_INET, text))
        packed = socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):
        return None
    return IPv4Address(packed[-4:]) if packed.startswith(MAPPED) else IPv6Address(packed)


@dataclass(frozen=True, slots=True)
class Networks:
    """A set of networks. A look-up takes one step per distinct prefix length."""

    members: tuple[Network, ...] = ()
    _prefixes: tuple[tuple[int, int, frozenset[int]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        found: dict[tuple[int, int], set[int]] = {}
        for network in self.members:
            shift = network.max_prefixlen - network.prefixlen
            at = (network.version, shift)
            found.setdefault(at, set()).add(int(network.network_address) >> shift)
        prefixes = tuple((*at, frozenset(starts)) for at, starts in sorted(found.items()))
        object.__setattr__(self, "_prefixes", prefixes)

    def __contains__(self, address: Address) -> bool:
        version, bits = address.version, int(address)
        for of_version, shift, starts in self._prefixes:  # hot path: no generator
            if of_version == version and bits >> shift in starts:
                return True
        return False

    def __str__(self) -> str:
        return ", ".join(str(network).removesuffix("/32") for network in self.members)


def parse_network(value: object) -> Network:
    """Parse a network. A network of all addresses is rejected, because it is never intended."""
    if not isinstance(value, str) or not value.isascii() or "%" in value:
        raise Unexpected(found=describe(value), expected=NETWORK_EXPECTED)
    try:
        network = _without_mapping(ip_network(value.strip(), strict=False))
    except ValueError:
        raise Unexpected(found=describe(value), expected=NETWORK_EXPECTED) from None
    if network.prefixlen == 0:
        raise Unexpected(
            found=f"{describe(value)}, which is everybody", expected="the networks that are meant"
        )
    host = read_address(value.strip().partition("/")[0])
    if host != network.network_address:
        raise Unexpected(
            found=f"{describe(value)}, which does not begin its network",
            expected=f"the network {network}, or the address {host} without a prefix",
        )
    return network


def _without_mapping(network: Network) -> Network:
    """Convert ::ffff:1.2.3.4 to IPv4: that is how a dual-stack listener reports 1.2.3.4."""
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < MAPPED_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - MAPPED_BITS))


def make_networks(values: Iterable[object]) -> Networks:
    """Parse networks and drop duplicates."""
    members = tuple(dict.fromkeys(parse_network(value) for value in values))
    if not 0 < len(members) <= MOST_NETWORKS:
        found = f"{len(members)} networks" if members else "an empty list"
        raise Unexpected(found=found, expected=f"1 to {MOST_NETWORKS} networks")
    return Networks(members)


def _listed(value: object) -> Networks:
    if isinstance(value, Networks):
        return value
    if not isinstance(value, str):
        raise Unexpected(found=describe(value), expected=f"{NETWORK_EXPECTED}, separated by commas")
    return make_networks(text.strip() for text in value.split(","))


NetworkText = Annotated[
    Network,
    PlainValidator(parse_network),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^{NETWORK_PATTERN}$",
            "examples": ["3.18.12.63", "192.30.252.0/22", "2001:db8::/32"],
        }
    ),
]
NetworksText = Annotated[
    Networks,
    BeforeValidator(_listed),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""Several networks in one comma-separated text, such as an environment variable."""
