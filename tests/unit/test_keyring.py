"""The keys of a route: which ones count when, and how they are exchanged."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.base.secrets import Secret, SecretRef
from gateway.ledger.reloads import SecretUses
from gateway.receive.keyring import Keyring, tell_expired
from tests.unit.test_routes import a_route

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)


def secret(name: str, expires_at: datetime | None = None) -> Secret:
    ref = SecretRef(kind="env", target=name, expires_at=expires_at)
    return Secret(f"value of {name}".encode(), ref)


def keyring(*secrets: Secret, uses: SecretUses | None = None) -> Keyring:
    refs = tuple(s.ref for s in secrets if s.ref)
    return Keyring(a_route(secrets=refs), secrets, uses or SecretUses())


def names(ring: Keyring, now: datetime) -> list[str]:
    at = ring.at(now)
    assert at.keys == tuple(held.key for held in at.held)
    return [held.name for held in at.held]


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    structlog.reset_defaults()


def test_without_an_expiry_no_time_is_looked_at() -> None:
    ring = keyring(secret("A"), secret("B"))
    assert ring.at(NOW).until is None
    assert ring.at(NOW) is ring.at(NOW + 10_000 * HOUR)
    assert names(ring, NOW) == ["env:A", "env:B"]


def test_a_secret_counts_up_to_its_expiry_and_not_a_moment_longer() -> None:
    ring = keyring(secret("A", NOW + HOUR), secret("B"))
    before = ring.at(NOW)
    assert ring.at(NOW + HOUR - timedelta(microseconds=1)) is before
    assert names(ring, NOW + HOUR - timedelta(microseconds=1)) == ["env:A", "env:B"]
    with capture_logs() as logs:
        assert names(ring, NOW + HOUR) == ["env:B"]
        assert ring.at(NOW + 2 * HOUR).keys == (b"value of B",)
    assert logs == [
        {"event": "secret_expired", "log_level": "warning", "route": "stripe", "secret": "env:A"}
    ]


def test_when_the_last_one_expires_that_is_said_loudly() -> None:
    ring = keyring(secret("A", NOW + HOUR), secret("B", NOW + 2 * HOUR))
    with capture_logs() as logs:
        assert names(ring, NOW + 3 * HOUR) == []
        assert names(ring, NOW + 4 * HOUR) == []
    assert [line["event"] for line in logs] == [
        "secret_expired",
        "secret_expired",
        "no_secret_left",
    ]
    assert logs[-1]["log_level"] == "error"


def test_who_asks_what_was_valid_then_changes_nothing_for_the_requests_of_now() -> None:
    ring = keyring(secret("A", NOW + HOUR), secret("B"))
    with capture_logs() as logs:
        assert names(ring, NOW + HOUR) == ["env:B"]
        live = ring.at(NOW + HOUR)
        assert names(ring, NOW) == ["env:A", "env:B"]
        assert ring.at(NOW + HOUR) is live
    assert len(logs) == 1


def test_exchanged_keys_count_at_once_and_one_who_was_reading_cannot_bring_the_old_back() -> None:
    ring = keyring(secret("A", NOW + HOUR))
    old = ring._bunch
    ring.hold(ring.cut([secret("B")]))
    assert names(ring, NOW) == ["env:B"]
    old.ring = old.turn(NOW + 2 * HOUR)  # as a thread does that has begun with the old ones
    assert names(ring, NOW + 2 * HOUR) == ["env:B"]


def test_a_reload_goes_on_counting_where_it_was() -> None:
    uses = SecretUses()
    ring = keyring(secret("A"), uses=uses)
    ring.at(NOW).held[0].use.note(NOW)
    ring.hold(ring.cut([secret("B"), secret("A")]))
    ring.at(NOW).held[1].use.note(NOW)
    assert list(uses.counts()) == [("stripe", "env:A", 2), ("stripe", "env:B", 0)]


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([None, NOW - HOUR], ["secret_expired"]),
        ([NOW - HOUR, NOW], ["secret_expired", "secret_expired", "no_secret_left"]),
        ([None, NOW + HOUR], []),
        ([], []),
    ],
)
def test_a_start_tells_what_has_expired(ends: list[datetime | None], told: list[str]) -> None:
    refs: Any = tuple(
        SecretRef(kind="env", target=f"S{n}", expires_at=end) for n, end in enumerate(ends)
    )
    with capture_logs() as logs:
        tell_expired([a_route(secrets=refs)], NOW)
    assert [line["event"] for line in logs] == told
