"""What waits to be written down of refused requests, and what may be kept of them."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from gateway.receive.rejected.recorder import NOT_KEPT, Scrubber, is_credential
from gateway.receive.rejected.requests import (
    MOST_BYTES,
    PER_PROCESS,
    PER_ROUTE,
    PER_SENDER,
    Waiting,
    measure,
)
from tests.support.refused import turned_away

SECRET = "whsec_of_ours"
START = datetime(2026, 11, 17, tzinfo=UTC)


def test_a_flood_of_one_sender_takes_few_places_and_leaves_room_for_others() -> None:
    waiting = Waiting()
    for n in range(50_000):
        waiting.add(turned_away(at=START + timedelta(milliseconds=n)))
        if n % 20_000 == 10_000:
            waiting.add(turned_away(address="198.51.100.1", at=START + timedelta(milliseconds=n)))
    found = waiting.requests()
    assert Counter(r.address for r in found) == {"203.0.113.7": PER_SENDER, "198.51.100.1": 2}
    assert waiting.left_out == 50_000 - PER_SENDER
    of_flood = [r.at for r in found if r.address == "203.0.113.7"]
    assert of_flood[0] == START, "the first one"
    assert of_flood[-1] == START + timedelta(milliseconds=49_999), "and the last one"


def test_who_sent_many_gives_way_to_who_comes_new() -> None:
    waiting = Waiting()
    for n in range(PER_ROUTE // PER_SENDER):
        for _ in range(PER_SENDER):
            waiting.add(turned_away(address=f"203.0.113.{n}"))
    assert len(waiting) == PER_ROUTE
    for _ in range(3):
        waiting.add(turned_away(address="198.51.100.1"))
    assert len(waiting) == PER_ROUTE
    assert Counter(r.address for r in waiting.requests())["198.51.100.1"] == 3


def test_a_thousand_senders_on_many_routes_do_not_fill_the_memory() -> None:
    waiting = Waiting()
    body = b"x" * (MOST_BYTES // 4)
    for n in range(5_000):
        waiting.add(turned_away(body, route=f"route{n % 50}", address=f"10.0.{n % 250}.{n % 7}"))
    found = waiting.requests()
    assert len(found) == len(waiting) == PER_PROCESS
    assert sum(len(r.body or b"") for r in found) <= MOST_BYTES
    assert max(Counter(r.route for r in found).values()) <= PER_ROUTE


def test_a_flood_on_one_route_leaves_the_others_their_places() -> None:
    waiting = Waiting()
    for n in range(5_000):
        waiting.add(turned_away(route="flooded", address=f"10.0.{n % 250}.{n % 7}"))
    for n in range(3):
        waiting.add(turned_away(route="quiet", address=f"198.51.100.{n}"))
    assert Counter(r.route for r in waiting.requests()) == {"flooded": PER_ROUTE, "quiet": 3}


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "proxy-authorization", "cookie", "x-api-key", "x-gitlab-token"),
        *("x-auth-token", "x-telegram-bot-api-secret-token", "x-access-key", "x-csrf-token"),
        *("x-amz-security-token", "apikey", "x-session", "x-goog-channel-token", "AUTH"),
    ],
)
def test_headers_that_carry_credentials_are_not_kept(name: str) -> None:
    assert is_credential(name)
    assert Scrubber([]).headers({name: "s3cret"}) == {name: NOT_KEPT}


@pytest.mark.parametrize(
    "name",
    [
        *("stripe-signature", "x-hub-signature-256", "webhook-signature", "webhook-timestamp"),
        *("content-type", "user-agent", "x-github-delivery", "idempotency-key", "x-author"),
    ],
)
def test_what_a_signature_needs_is_kept(name: str) -> None:
    assert Scrubber([]).headers({name: "v1"}) == {name: "v1"}


def test_a_secret_of_ours_is_kept_nowhere_wherever_it_stands() -> None:
    scrubber = Scrubber([SECRET.encode()], {"x-hook"})
    headers = {"x-odd": f"v={SECRET}", "x-hook": "any", "x-fine": "yes"}
    assert scrubber.headers(headers) == {"x-odd": NOT_KEPT, "x-hook": NOT_KEPT, "x-fine": "yes"}
    assert scrubber.body(f'{{"key": "{SECRET}"}}'.encode()) is None
    assert scrubber.body(b"{}") == b"{}"
    assert SECRET not in scrubber.path(f"/hook?x={SECRET}&y=1")
    assert SECRET not in scrubber.path(f"/{SECRET}/hook")


def test_a_token_in_the_query_is_not_kept() -> None:
    path = Scrubber([]).path("/hook?token=abc&page=2&API_KEY=x&a=b%20c")
    assert path == f"/hook?token={NOT_KEPT}&page=2&API_KEY={NOT_KEPT}&a=b%20c"


def test_a_short_secret_does_not_hide_everything() -> None:
    assert Scrubber([b"a"]).headers({"user-agent": "curl and more"}) == {
        "user-agent": "curl and more"
    }


@pytest.mark.parametrize(
    ("announced", "body", "expected"),
    [
        ("7", None, 7),
        ("7", b"abc", 3),
        ("", None, None),
        ("-1", None, None),
        ("9" * 30, None, None),
    ],
)
def test_a_body_that_was_not_taken_has_the_size_that_was_announced(
    announced: str, body: bytes | None, expected: int | None
) -> None:
    assert measure({"content-length": announced}, body) == expected
