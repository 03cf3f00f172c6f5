"""Addresses to which nothing is sent, however they are written."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.outbound import literal, refusal, refusal_of_host

METADATA = IPv4Address("169.254.169.254")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("169.254.169.254", "link-local"),
        ("169.254.170.2", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("febf:ffff::1", "link-local"),
        ("100.100.100.200", "Alibaba"),
        ("192.0.0.192", "Oracle"),
        ("168.63.129.16", "Azure"),
        ("fd00:ec2::254", "AWS"),
        ("fd20:ce::254", "Google"),
        ("0.0.0.0", "unspecified"),  # noqa: S104 (nothing is bound to it)
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
    ],
)
def test_nothing_is_sent_to(text: str, what: str) -> None:
    told = refusal(ip_address(text))
    assert told is not None
    assert what in told


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "172.16.5.4", "192.168.1.1"),
        *("100.64.0.1", "fd12:3456::1", "fc00::1", "93.184.216.34", "2606:2800:220:1::1"),
        *("169.253.255.255", "169.255.0.0", "100.100.100.199", "fec0::1", "64:ff9b::8.8.8.8"),
    ],
)
def test_peoples_own_services_and_the_internet_are_all_right(text: str) -> None:
    assert refusal(ip_address(text)) is None


HIGH, LOW = 0xA9FE, 0xA9FE


@pytest.mark.parametrize(
    "text",
    [
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "::ffff:0:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::169.254.169.254",
        f"64:ff9b:1:{HIGH:x}:00{LOW >> 8:x}:{LOW & 0xFF:x}00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:0:a9:fea9:fe00:0",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::1",
        "2001:0:5db8:d822:0:0:5601:5601",
        "2001:db8::5efe:169.254.169.254",
        "fd00::200:5efe:169.254.169.254",
    ],
)
def test_an_address_within_another_is_found(text: str) -> None:
    assert refusal(IPv6Address(text)) is not None, text


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_in_ipv6_clothes_is_judged_as_itself(number: int) -> None:
    plain = IPv4Address(number)
    assert refusal(IPv6Address(f"::ffff:{plain}")) == refusal(plain)
    assert refusal(IPv6Address(f"64:ff9b::{plain}")) == refusal(plain)


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"),
        *("0xa9.0xfe.0xa9.0xfe", "169.254.169.254.", "169.0xfea9fe"),
    ],
)
def test_every_spelling_of_an_address_is_that_address(host: str) -> None:
    assert literal(host) == METADATA
    assert refusal_of_host(host) is not None


def test_names_are_no_addresses() -> None:
    assert literal("orders.internal") is None
    assert literal("bücher.example") is None
    assert literal("") is None
    assert refusal_of_host("orders.internal") is None
    assert literal("[::1]") == IPv6Address("::1")


@pytest.mark.parametrize("name", ["metadata.google.internal", "Metadata.Google.Internal."])
def test_the_names_of_metadata_services_are_refused(name: str) -> None:
    assert refusal_of_host(name) is not None
