"""Addresses to which nothing is sent: a cloud's metadata, and what no service of one's own has."""

import socket
from collections.abc import Iterator, Mapping
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Final

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
"""Loopback and private networks are not among them: there stand people's own services."""

REFUSED_NAMES: Final = frozenset({"metadata.google.internal", "metadata.goog"})
METADATA: Final = "the metadata service of a cloud"

# Where an IPv6 address carries an IPv4 address to which a router or the system may translate it:
# by how many bits that stands above the end.
MAPPED: Final[Mapping[IPv6Network, int]] = {
    IPv6Network("::ffff:0:0/96"): 0,  # RFC 4291, IPv4-mapped
    IPv6Network("::/96"): 0,  # RFC 4291, IPv4-compatible
    IPv6Network("::ffff:0:0:0/96"): 0,  # RFC 2765, IPv4-translated
    IPv6Network("64:ff9b::/96"): 0,  # RFC 6052, NAT64
    IPv6Network("64:ff9b:1::/48"): 0,  # RFC 8215, NAT64 of one's own
    IPv6Network("2002::/16"): 80,  # RFC 3056, 6to4
}
LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
SHORT_PREFIXES: Final = (48, 56, 64)
TEREDO: Final = IPv6Network("2001::/32")
ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
LOW_32: Final = 0xFFFFFFFF


def refusal(address: Address) -> str | None:
    """What it is that nothing is sent to, in words; None for an address that is all right."""
    if isinstance(address, IPv6Address) and address.is_loopback:  # looks like 0.0.0.1, compatible
        return None
    for meant in (address, *_carried(address)):
        for network, what in REFUSED.items():
            if meant.version == network.version and meant in network:
                return what
    return None


def literal(host: str) -> Address | None:
    """The address that a host of a URL spells out; None for a name.

    As the system reads it: 2852039166, 0xa9fea9fe and 0251.0376.0251.0376 are 169.254.169.254.
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
    """The same for the host of a URL, as far as it can be told without asking for its address."""
    if host.lower().removesuffix(".") in REFUSED_NAMES:
        return METADATA
    address = literal(host)
    return None if address is None else refusal(address)


def _carried(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses at which a packet to this one may arrive."""
    if isinstance(address, IPv4Address):
        return
    bits = int(address)
    for network, shift in MAPPED.items():
        if address in network:
            yield IPv4Address(bits >> shift & LOW_32)
    if address in LOCAL_NAT64:  # RFC 6052, 2.2: it may follow a shorter prefix, round bits 64 to 71
        without = bits >> 64 << 56 | bits & 0xFFFFFFFFFFFFFF
        for prefix in SHORT_PREFIXES:
            yield IPv4Address(without >> 120 - prefix - 32 & LOW_32)
    if address in TEREDO:  # RFC 4380: the client's, inverted, and the server's
        yield IPv4Address(~bits & LOW_32)
        yield IPv4Address(bits >> 64 & LOW_32)
    if bits >> 32 & LOW_32 in ISATAP:  # RFC 5214, under any prefix
        yield IPv4Address(bits & LOW_32)
