"""Logging in, tried from many addresses at once: who waits for whose wrong tokens."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.base.networks import make_networks
from gateway.base.secrets import Secret
from gateway.console.login import Login
from gateway.console.request import safe_place
from gateway.console.sessions import FREE_TRIES, Access
from gateway.http.client_address import Addresses
from gateway.operations.context import OperationContext

TOKEN = "the-token-of-the-admin-in-this-suite"
READER = "the-token-of-a-reader-in-this-suite"
PROXY = "10.0.0.7"


def entrance(trusted: str | None = None, reader: Secret | None = None) -> Login:
    networks = None if trusted is None else make_networks([trusted])
    access = Access(admin=Secret(TOKEN.encode()), reader=reader)
    return Login(access, Addresses(networks), _no_office)


def _no_office(actor: str) -> OperationContext:
    raise AssertionError("nobody logs out here")


async def try_token(
    door: Login,
    token: str,
    *,
    peer: str = "203.0.113.9",
    forwarded: str | None = None,
    cookies: Any = None,
    place: str = "",
) -> httpx.Response:
    transport = httpx.ASGITransport(door, client=(peer, 1234))
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://gateway", headers=headers, cookies=cookies
    ) as client:
        return await client.post("/console/login", data={"token": token, "next": place})


async def exhaust(door: Login, **where: Any) -> None:
    """Until even the right one is not looked at."""
    for _ in range(FREE_TRIES):
        assert (await try_token(door, "wrong", **where)).status_code == 403
    answer = await try_token(door, TOKEN, **where)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


async def test_each_client_behind_a_trusted_proxy_has_a_count_of_its_own() -> None:
    door = entrance(trusted=f"{PROXY}/32")
    await exhaust(door, peer=PROXY, forwarded="203.0.113.9")
    assert (await try_token(door, TOKEN, peer=PROXY, forwarded="198.51.100.4")).status_code == 303


async def test_what_a_client_says_of_itself_does_not_give_it_a_new_count() -> None:
    door = entrance(trusted=f"{PROXY}/32")
    await exhaust(door, peer=PROXY, forwarded="203.0.113.9")
    for made_up in ("1.1.1.1, 203.0.113.9", "8.8.8.8, 203.0.113.9"):
        assert (await try_token(door, TOKEN, peer=PROXY, forwarded=made_up)).status_code == 429
    direct = entrance()
    await exhaust(direct)
    assert (await try_token(direct, TOKEN, forwarded="1.1.1.1")).status_code == 429


async def test_a_customer_of_ipv6_has_one_count_for_all_its_addresses() -> None:
    door = entrance()
    await exhaust(door, peer="2001:db8:1:2::1")
    assert (await try_token(door, TOKEN, peer="2001:db8:1:2:3:4:5:6")).status_code == 429
    assert (await try_token(door, TOKEN, peer="2001:db8:1:3::1")).status_code == 303


async def test_behind_a_proxy_that_nobody_has_named_no_one_is_locked_out() -> None:
    door = entrance()
    for _ in range(20):
        answer = await try_token(door, "wrong", peer=PROXY, forwarded="203.0.113.9")
        assert answer.status_code == 403
    assert (await try_token(door, TOKEN, peer=PROXY, forwarded="198.51.100.4")).status_code == 303


async def test_a_browser_that_was_let_in_before_does_not_wait_for_its_neighbours() -> None:
    door = entrance()
    known = (await try_token(door, TOKEN)).cookies
    await exhaust(door)
    assert (await try_token(door, TOKEN, cookies=known)).status_code == 303
    await exhaust(door, cookies=known)


async def test_a_reader_guesses_no_faster_for_logging_in_between() -> None:
    door = entrance(reader=Secret(READER.encode()))
    for _ in range(FREE_TRIES):
        assert (await try_token(door, "wrong")).status_code == 403
        answer = await try_token(door, READER)
    assert answer.status_code == 429
    fresh = entrance(reader=Secret(READER.encode()))
    answer = await try_token(fresh, READER)
    assert answer.status_code == 303
    assert list(answer.cookies) == ["gateway_session"]


async def test_where_there_is_no_other_token_a_reader_begins_anew() -> None:
    access = Access(admin=None, reader=Secret(READER.encode()))
    door = Login(access, Addresses(None), _no_office)
    for _ in range(2 * FREE_TRIES):
        assert (await try_token(door, "wrong")).status_code == 403
        assert (await try_token(door, READER)).status_code == 303


@pytest.mark.parametrize("length", [100, 4_900, 60_000])
async def test_however_long_the_page_that_was_wanted_one_gets_in(length: int) -> None:
    place = "/console/events?type=" + "%D0" * (length // 3)
    answer = await try_token(entrance(), TOKEN, place=safe_place(place))
    assert answer.status_code == 303
    assert answer.headers["location"] == (place if length < 5_000 else "/console/")


async def test_logins_are_logged_and_tokens_are_not() -> None:
    door = entrance()
    with capture_logs() as logs:
        for _ in range(2):
            await try_token(door, "a-token-that-is-wrong")
        await try_token(door, TOKEN)
    assert [line["event"] for line in logs] == ["login_refused", "login_refused", "logged_in"]
    assert {line["address"] for line in logs} == {"203.0.113.9"}
    assert logs[-1]["role"] == "admin"
    assert "a-token-that-is-wrong" not in str(logs)
    assert TOKEN not in str(logs)


@pytest.mark.parametrize("made_up", ["", "x", "a.b", "." * 5000, "a." + "0" * 64])
async def test_a_mark_that_is_made_up_gives_no_count_of_its_own(made_up: str) -> None:
    door = entrance()
    await exhaust(door)
    cookies = {"gateway_browser": made_up}
    assert (await try_token(door, TOKEN, cookies=cookies)).status_code == 429


async def test_the_mark_of_a_browser_is_no_session_nor_a_session_a_mark() -> None:
    access = Access(admin=Secret(TOKEN.encode()), reader=None)
    session = access.enter(TOKEN, "Ada")
    assert session is not None
    assert access.recognise(access.remember()) is None
    assert access.known_browser(session) is None


async def test_a_form_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.console.request.FORM_WITHIN_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b"token="
        while True:
            yield b"a" * 5000

    transport = httpx.ASGITransport(entrance(), client=("203.0.113.9", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.post("/console/login", content=endless())
    assert answer.status_code == 403
