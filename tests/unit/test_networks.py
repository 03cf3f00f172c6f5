"""Networks as people write them, and whether an address is in them."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import ConfigInvalid
from gateway.base.networks import (
    NETWORK_EXPECTED,
    Network,
    Networks,
    make_networks,
    parse_network,
    read_address,
)
from gateway.base.problems import Unexpected
from gateway.config.settings import load_settings


@st.composite
def networks(draw: st.DrawFn) -> Network:
    address = draw(st.ip_addresses())
    prefix = draw(st.integers(1, address.max_prefixlen))
    network: Network = ip_network((address, prefix), strict=False)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return network if mapped is None else ip_network(mapped)


@given(st.lists(networks(), min_size=1, max_size=20), st.ip_addresses())
def test_an_address_is_in_them_when_it_is_in_one_of_them(
    members: list[Network], address: IPv4Address | IPv6Address
) -> None:
    found = Networks(tuple(members))
    assert (address in found) == any(
        address in network for network in members if network.version == address.version
    )
    for network in members:
        assert network.network_address in found
        assert network.broadcast_address in found


@given(networks())
def test_a_network_is_read_as_it_is_written(network: Network) -> None:
    assert parse_network(str(network)) == network


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.30.252.0/22", "192.30.252.0/22"),
        (" 3.18.12.63 ", "3.18.12.63/32"),
        ("::ffff:3.18.12.63", "3.18.12.63/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("2001:DB8::/32", "2001:db8::/32"),
    ],
)
def test_what_can_be_written(text: str, expected: str) -> None:
    assert str(parse_network(text)) == expected


@pytest.mark.parametrize(
    ("value", "found", "expected"),
    [
        ("hooks.stripe.com", "'hooks.stripe.com'", NETWORK_EXPECTED),
        ("", "''", NETWORK_EXPECTED),
        ("10.0.0.0/33", "'10.0.0.0/33'", NETWORK_EXPECTED),
        ("10.0.0", "'10.0.0'", NETWORK_EXPECTED),
        ("010.0.0.1", "'010.0.0.1'", NETWORK_EXPECTED),
        ("fe80::1%eth0", "'fe80::1%eth0'", NETWORK_EXPECTED),
        ("\uff11.2.3.4", "'\uff11.2.3.4'", NETWORK_EXPECTED),
        (7, "7", NETWORK_EXPECTED),
        (None, "nothing", NETWORK_EXPECTED),
        (
            "192.30.252.7/22",
            "'192.30.252.7/22', which does not begin its network",
            "the network 192.30.252.0/22, or the address 192.30.252.7 without a prefix",
        ),
        ("0.0.0.0/0", "'0.0.0.0/0', which is everybody", "the networks that are meant"),
        ("::/0", "'::/0', which is everybody", "the networks that are meant"),
        ("10.1.2.3/0", "'10.1.2.3/0', which is everybody", "the networks that are meant"),
        ("::ffff:0:0/96", "'::ffff:0:0/96', which is everybody", "the networks that are meant"),
    ],
)
def test_what_cannot(value: object, found: str, expected: str) -> None:
    with pytest.raises(Unexpected) as refused:
        parse_network(value)
    assert (refused.value.found, refused.value.expected) == (found, expected)


def test_a_list_names_each_once_and_at_least_one() -> None:
    assert str(make_networks(["10.0.0.0/8", "::1", "10.0.0.0/8"])) == "10.0.0.0/8, ::1/128"
    with pytest.raises(Unexpected, match="1 to 10000 networks"):
        make_networks([])


@given(st.text(max_size=100))
def test_any_text_is_an_address_or_none(text: str) -> None:
    address = read_address(text)
    assert address is None or address == ip_address(str(address))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("fe80::1%eth0", "fe80::1"),
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3", None),
        ("0x7f.0.0.1", None),
        ("1" * 1000, None),
    ],
)
def test_an_address_is_read_without_its_disguise(text: str, address: str | None) -> None:
    assert read_address(text) == (None if address is None else ip_address(address))


def test_the_trusted_proxies_are_a_setting() -> None:
    given = load_settings({"GATEWAY_TRUSTED_PROXIES": "10.0.0.0/8, ::1"}).trusted_proxies
    assert given is not None
    assert ip_address("10.1.2.3") in given
    assert ip_address("::1") in given
    assert ip_address("11.1.2.3") not in given
    with pytest.raises(ConfigInvalid, match=r"GATEWAY_TRUSTED_PROXIES: found '0.0.0.0/0', which"):
        load_settings({"GATEWAY_TRUSTED_PROXIES": "0.0.0.0/0"})
    with pytest.raises(ConfigInvalid, match=r"GATEWAY_TRUSTED_PROXIES: found 'proxy\.internal'"):
        load_settings({"GATEWAY_TRUSTED_PROXIES": "10.0.0.1,proxy.internal"})
