"""The client's address: believed of trusted proxies only, and never a way to be somebody else."""

from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.base.networks import make_networks
from gateway.http.client_address import LONGEST_FORWARDED, MOST_HOPS, MOST_TOLD, Addresses

PROXY = "10.0.0.5"
STRANGER = "198.51.100.7"
TRUSTED = make_networks(["10.0.0.0/8", "2001:db8::/64"])


def scope(peer: str | None, *headers: tuple[str, str]) -> dict[str, object]:
    return {
        "type": "http",
        "method": "POST",
        "client": None if peer is None else (peer, 4711),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }


def found(peer: str | None, *headers: tuple[str, str]) -> str | None:
    client = Addresses(TRUSTED).of(scope(peer, *headers))
    return None if client is None else str(client.address)


def through(chain: str) -> str | None:
    return found(PROXY, ("x-forwarded-for", chain))


def by_pairs(text: str) -> str | None:
    return found(PROXY, ("forwarded", text))


def test_a_stranger_is_who_it_is_whatever_it_says() -> None:
    assert found(STRANGER, ("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4")) == STRANGER


def test_without_trusted_proxies_nobody_is_believed() -> None:
    client = Addresses(None).of(scope(PROXY, ("x-forwarded-for", "1.2.3.4")))
    assert client is not None
    assert str(client.address) == PROXY


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4, 10.0.0.9", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4,10.0.0.9 ,\t10.1.1.1", "1.2.3.4"),
        ("10.0.0.9, 10.0.0.8", "10.0.0.9"),
        ("1.2.3.4:5678", "1.2.3.4"),
        ("[2001:db9::1]:443", "2001:db9::1"),
        ("[2001:db9::1]", "2001:db9::1"),
        ("2001:db9::1", "2001:db9::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("[::ffff:1.2.3.4]:99", "1.2.3.4"),
        ("6.6.6.6, 2001:db8::9", "6.6.6.6"),
        ("garbage, 1.2.3.4", "1.2.3.4"),
    ],
)
def test_the_nearest_that_is_no_proxy_of_ours(chain: str, expected: str) -> None:
    assert through(chain) == expected


@pytest.mark.parametrize(
    "chain",
    [
        "",
        ",",
        "1.2.3.4,",
        "unknown",
        "_hidden",
        "1.2.3.4, unknown",
        "6.6.6.6, 1.2.3.4.5, 10.0.0.9",
        "010.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "1.2.3.4:",
        "1.2.3.4:port",
        "1.2.3.4:123456",
        "[1.2.3.4]:80",
        "[::1",
        "::1]",
        "[]",
        "1.2.3.4 6.6.6.6",
        "1.2.3.4;6.6.6.6",
        "\xb2.2.3.4",
        "1" * 60_000,
        "," * 60_000,
    ],
)
def test_garbage_is_the_peer(chain: str) -> None:
    assert through(chain) == PROXY


def test_a_chain_is_followed_so_far_and_no_further() -> None:
    assert through(", ".join(["1.2.3.4", *["10.0.0.9"] * (MOST_HOPS - 1)])) == "1.2.3.4"
    assert through(", ".join(["1.2.3.4", *["10.0.0.9"] * MOST_HOPS])) == PROXY
    lines = [("x-forwarded-for", "10.0.0.9, 10.0.0.9")] * MOST_HOPS
    assert found(PROXY, ("x-forwarded-for", "1.2.3.4"), *lines) == PROXY


def test_several_lines_are_one_list() -> None:
    lines = ("6.6.6.6", "1.2.3.4", "10.0.0.9")
    assert found(PROXY, *(("x-forwarded-for", line) for line in lines)) == "1.2.3.4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for=1.2.3.4", "1.2.3.4"),
        ("For=1.2.3.4;proto=https;by=10.0.0.5", "1.2.3.4"),
        ('proto=https ; for="1.2.3.4:80"', "1.2.3.4"),
        ('for="[2001:db9::1]:4711"', "2001:db9::1"),
        ('for=6.6.6.6, for="1.2.3.4", for=10.0.0.9', "1.2.3.4"),
        ('for=1.2.3.4;host="a, for=6.6.6.6"', "1.2.3.4"),
        (r'for="1.2\.3.4"', "1.2.3.4"),
    ],
)
def test_the_header_of_the_standard(text: str, expected: str) -> None:
    assert by_pairs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "for",
        "for=",
        "proto=https",
        "for=unknown",
        "for=_gazonk",
        "for=1.2.3.4,",
        "for=1.2.3.4,,for=1.2.3.4",
        "for=1.2.3.4;for=6.6.6.6",
        "for=[2001:db9::1]",
        'for="1.2.3.4',
        'for=6.6.6.6;x=", for=1.2.3.4',
        'for=6.6.6.6;x=", for="[2001:db9::1]"',
        "for=1.2.3.4;x=" + "y" * LONGEST_FORWARDED,
        '"' * 60_000,
    ],
)
def test_what_cannot_be_read_to_its_end_is_the_peer(text: str) -> None:
    assert by_pairs(text) == PROXY


def test_an_open_quote_on_a_line_of_its_own_swallows_nothing() -> None:
    assert found(PROXY, ("forwarded", 'for="'), ("forwarded", "for=1.2.3.4")) == "1.2.3.4"


def test_two_headers_are_believed_where_they_agree() -> None:
    agreed = (("x-forwarded-for", "6.6.6.6, 1.2.3.4"), ("forwarded", "for=1.2.3.4"))
    assert found(PROXY, *agreed) == "1.2.3.4"
    feigned = (("x-forwarded-for", "6.6.6.6"), ("forwarded", "for=1.2.3.4"))
    assert found(PROXY, *feigned) == PROXY
    assert found(PROXY, ("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=nobody")) == PROXY


@pytest.mark.parametrize("peer", ["::ffff:10.0.0.5", "2001:db8::1%eth0"])
def test_a_proxy_is_known_in_any_notation(peer: str) -> None:
    assert found(peer, ("x-forwarded-for", "1.2.3.4")) == "1.2.3.4"


def test_a_unix_socket_has_no_address() -> None:
    assert found(None, ("x-forwarded-for", "1.2.3.4")) is None


@given(st.lists(st.sampled_from(["6.6.6.6", "10.0.0.9", "junk", "", '"', "::1", "[", "for=1"])))
@example([])
def test_nothing_to_the_left_changes_who_the_proxy_saw(written: list[str]) -> None:
    """The promise itself: what a stranger writes comes before what our proxy adds."""
    assert through(", ".join([*written, "1.2.3.4"])) == "1.2.3.4"
    assert through(", ".join([*written, "1.2.3.4", "10.0.0.9"])) == "1.2.3.4"


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=300))
@example('for=6.6.6.6;x="')
@example("for=6.6.6.6\\")
def test_no_line_of_a_stranger_makes_it_somebody_else(written: str) -> None:
    """Who adds to the same line, with a comma, is seen: or it is the proxy, but nobody else."""
    assert by_pairs(f"{written}, for=1.2.3.4") in {"1.2.3.4", PROXY}
    assert by_pairs(f'{written}, for="[2001:db9::1]:80"') in {"2001:db9::1", PROXY}
    assert through(f"{written}, 1.2.3.4") == "1.2.3.4"


@given(st.lists(st.tuples(st.sampled_from(["x-forwarded-for", "forwarded"]), st.binary())))
def test_any_bytes_have_an_outcome(lines: list[tuple[str, bytes]]) -> None:
    """Somebody, and never an exception."""
    headers = tuple((name, value.decode("latin-1")) for name, value in lines)
    assert found(PROXY, *headers) is not None


def group(text: str) -> int:
    client = Addresses(None).of(scope(text))
    assert client is not None
    return client.group


def test_an_ipv6_customer_is_its_64() -> None:
    assert group("2001:db9:0:1::7") == group("2001:db9:0:1:ffff::f") != group("2001:db9:0:2::7")
    assert group("0.0.0.1") == group("::ffff:0.0.0.1") != group("::1")


def test_whoever_forwards_and_is_not_trusted_is_named_once() -> None:
    addresses = Addresses(None)
    proxied = scope(PROXY, ("x-forwarded-for", "1.2.3.4"))
    with capture_logs() as logs:
        assert [addresses.is_masked(proxied) for _ in range(3)] == [True] * 3
        for number in range(MOST_TOLD + 5):
            addresses.tell_of_proxy(scope(f"10.1.1.{number}", ("forwarded", "for=1.2.3.4")))
    assert [entry["event"] for entry in logs] == ["forwarded_headers_not_believed"] * MOST_TOLD
    assert logs[0]["peer"] == PROXY
    assert "GATEWAY_TRUSTED_PROXIES" in logs[0]["advice"]


def test_from_outside_nobody_passes_for_a_proxy_of_ours() -> None:
    addresses = Addresses(TRUSTED)
    with capture_logs() as logs:
        assert not addresses.is_masked(scope(STRANGER, ("x-forwarded-for", "1.2.3.4")))
        assert not addresses.is_masked(scope("192.168.1.1"))
        assert not addresses.is_masked(scope(PROXY, ("x-forwarded-for", "1.2.3.4")))
    assert not logs
    assert ip_address(STRANGER).is_private  # for Python; not for us, who could not test otherwise


def test_who_forwards_from_our_own_network_is_no_proxy_of_ours_once_they_are_named() -> None:
    """Anybody in there could send the header, and guess tokens without being counted."""
    proxied = scope("192.168.9.9", ("x-forwarded-for", "1.2.3.4"))
    with capture_logs() as logs:
        assert Addresses(None).is_masked(proxied)
        assert not Addresses(TRUSTED).is_masked(proxied)
    assert [entry["event"] for entry in logs] == ["forwarded_headers_not_believed"] * 2
