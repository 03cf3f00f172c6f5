"""The ring of refused requests: bounded, fair, forgotten in time, and released once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from gateway.api.operations.rejected import (
    REJECTED,
    REJECTED_GROUPS,
    RELEASE,
    SHOW_REJECTED,
    RejectedGroupParams,
    RejectedParams,
    ReleaseParams,
    ShowRejectedParams,
)
from gateway.api.shapes import ReleasedRow
from gateway.base.errors import CommandFailed, NotFound
from gateway.config.project import load_project
from gateway.config.settings import Settings
from gateway.ledger.connection import Connection, connect
from gateway.ledger.rejected import (
    Bounds,
    NoRoom,
    Rejected,
    compare_clocks,
    forget_rejected,
    keep_items,
    keep_rejected,
)
from gateway.operations.context import OperationContext
from gateway.operations.stored_data import ErasureSubject, count_to_erase, erase
from gateway.processes.serve import make_recorder
from gateway.providers import PROVIDERS
from gateway.receive.metrics import Metrics
from gateway.receive.rejected.requests import PER_ROUTE, PER_SENDER
from gateway.receive.rejected.writer import RejectedRequests
from tests.support.in_process import in_project
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import (
    GITHUB_SECRET,
    HANDLERS,
    STRIPE_SECRET,
    Project,
    github_request,
    stripe_request,
)
from tests.support.refused import turned_away
from tests.support.waiting import until

HOUR = timedelta(hours=1)
NOW = datetime.now(UTC)


def row(n: int = 0, **more: Any) -> Rejected:
    values: dict[str, Any] = {
        "route": "stripe", "at": NOW + timedelta(milliseconds=n), "code": "BAD_SIGNATURE",
        "cause": "unknown_secret", "detail": "signed with a secret that no route has",
        "shadow": False, "method": "POST", "path": "/webhooks/stripe", "address": "203.0.113.7",
        "sender": "203.0.113.7 bot", "headers": {"user-agent": "bot"}, "body": b"{}",
        "body_bytes": 2, "digest": b"d",
    }  # fmt: skip
    return Rejected(**values | more)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await connect(database_url, name="test")
    yield connection
    await connection.close()


async def test_the_ring_is_capped_per_route_in_rows(connection: Connection, ledger: Reader) -> None:
    bounds = Bounds(20, 10**9)
    for start in range(0, 300, 30):
        await keep_rejected(connection, [row(start + n) for n in range(30)], bounds)
    await keep_rejected(connection, [row(n, route="github") for n in range(5)], bounds)
    found = await ledger.rows("select route, count(*) as n from gateway.rejected group by route")
    assert {r["route"]: r["n"] for r in found} == {"stripe": 20, "github": 5}
    newest = await ledger.value("select max(at) from gateway.rejected where route = 'stripe'")
    oldest = await ledger.value("select min(at) from gateway.rejected where route = 'stripe'")
    assert newest == NOW + timedelta(milliseconds=299)
    assert oldest == NOW, "the very first one tells when it began"


async def test_the_ring_is_capped_per_route_in_bytes(
    connection: Connection, ledger: Reader
) -> None:
    rows = [row(n, body=b"x" * 10_000) for n in range(50)]
    await keep_rejected(connection, rows, Bounds(200, 100_000))
    assert 5 <= await ledger.value("select count(*) from gateway.rejected") <= 10
    assert await ledger.value("select sum(octet_length(body)) from gateway.rejected") <= 100_000


async def test_a_flood_does_not_push_out_what_a_good_sender_sent(
    connection: Connection, ledger: Reader
) -> None:
    """Three of one sender, then thousands: from one address, then with another cause from many."""
    bounds = Bounds(50, 10**9)
    good = {"sender": "198.51.100.1 Stripe/1.0", "address": "198.51.100.1"}
    await keep_rejected(connection, [row(n, **good) for n in range(3)], bounds)
    for batch in range(20):
        flood = [row(100 + 64 * batch + n) for n in range(64)]
        await keep_rejected(connection, flood, bounds)
    for batch in range(20):
        flood = [
            row(9000 + 64 * batch + n, cause="no_signature", sender=f"10.0.{batch}.{n} bot")
            for n in range(64)
        ]
        await keep_rejected(connection, flood, bounds)
    found = await ledger.rows("select cause, sender from gateway.rejected")
    assert len(found) == 50
    assert sum(r["sender"] == good["sender"] for r in found) == 3
    assert Counter(r["cause"] for r in found)["unknown_secret"] == 25, "each cause has its half"


async def test_items_that_wait_are_neither_trimmed_nor_forgotten(
    connection: Connection, ledger: Reader
) -> None:
    """Until they are released, or 90 days old: their sender does not send them again."""
    bounds, old = Bounds(3, 10**9), NOW - timedelta(days=30)
    item: dict[str, Any] = {"code": "BAD_PAYLOAD", "cause": "bad_item", "verified_by": "env:A"}
    items = [row(at=old, digest=b"%d" % n, **item) for n in range(3)]
    for _ in range(2):
        await keep_items(connection, items, bounds)
    with pytest.raises(NoRoom):
        await keep_items(connection, [row(digest=b"more", **item)], bounds)
    await keep_rejected(connection, [row(n) for n in range(50)], bounds)
    assert await forget_rejected(connection, timedelta(days=7)) == 0
    count = (
        "select count(*) filter (where verified_by is null) as requests,"
        " count(verified_by) as items from gateway.rejected"
    )
    assert tuple((await ledger.row(count)).values()) == (3, 3)
    await ledger.run("update gateway.rejected set released_at = now() where digest = '0'")
    assert await forget_rejected(connection, timedelta(days=7)) == 1
    await keep_items(connection, [row(digest=b"more", **item)], bounds)
    await ledger.run("update gateway.rejected set at = at - interval '61 days'")
    assert await forget_rejected(connection, timedelta(days=7)) == 5


ITEM: Final = {"code": "BAD_PAYLOAD", "cause": "bad_item", "verified_by": "env:A"}
DUPLICATE: Final = {"code": "DUPLICATE", "cause": "duplicate", "verified_by": "env:A"}


async def test_items_and_duplicates_with_the_same_bytes_are_kept_beside_each_other(
    connection: Connection, ledger: Reader
) -> None:
    bounds = Bounds(20, 10**8)
    for n in range(3):
        await keep_items(connection, [row(n, **ITEM), row(n, **ITEM)], bounds)
        await keep_rejected(connection, [row(n, **DUPLICATE), row(n, **DUPLICATE)], bounds)
    found = await ledger.rows("select code, copies, at from gateway.rejected order by code")
    assert [tuple(one.values()) for one in found] == [
        ("BAD_PAYLOAD", 1, NOW),
        ("DUPLICATE", 6, NOW),  # the first: its time is in the id of what a release makes of it
    ]


async def test_duplicates_that_give_way_to_others_are_counted(
    connection: Connection, ledger: Reader
) -> None:
    bounds = Bounds(20, 10**8)
    many = [row(n, digest=b"%d" % n, **DUPLICATE) for n in range(25)]
    assert await keep_rejected(connection, many, bounds) == 5
    assert await keep_rejected(connection, [row(90, sender="another")], bounds) == 1
    await ledger.run("update gateway.rejected set released_at = now()")
    assert await keep_rejected(connection, [row(99, sender="third")], bounds) == 0


async def test_processes_that_write_at_once_keep_the_bound(
    database_url: str, ledger: Reader
) -> None:
    async def write(process: int) -> None:
        own = await connect(database_url, name="test")
        for n in range(5):
            rows = [row(n, sender=f"{process}-{k}") for k in range(20)]
            await keep_rejected(own, rows, Bounds(30, 10**9))
        await own.close()

    await asyncio.gather(*map(write, range(4)))
    assert await ledger.value("select count(*) from gateway.rejected") == 30


async def test_hostile_text_is_kept_as_text(connection: Connection, ledger: Reader) -> None:
    hostile = {"x": "\x1b[2J\u202e\x7f", "y": "é" * 3}
    await keep_rejected(connection, [row(headers=hostile, body=b"\x00\xff")], Bounds(5, 10**9))
    found = await ledger.row("select headers::text, body from gateway.rejected")
    assert found["body"] == b"\x00\xff"


async def test_old_ones_are_forgotten(connection: Connection, ledger: Reader) -> None:
    rows = [row(at=NOW - n * HOUR) for n in range(10)]
    await keep_rejected(connection, rows, Bounds(50, 10**9))
    assert await forget_rejected(connection, timedelta(hours=4.5)) == 5
    assert await ledger.value("select count(*) from gateway.rejected") == 5


async def test_an_erasure_takes_what_names_its_subject(
    connection: Connection, ledger: Reader
) -> None:
    rows = [
        row(body=b'{"account": "acct_7"}'),
        row(path="/webhooks/stripe?account=acct_7"),
        row(headers={"stripe-account": "acct_7"}),
        row(body=b'{"account": "acct_8"}'),
        row(route="github", body=b"acct_7"),
    ]
    await keep_rejected(connection, rows, Bounds(50, 10**9))
    subject = ErasureSubject(account="acct_7", route="stripe")
    counted, _ = await count_to_erase(connection, subject, None)
    erased, _ = await erase(connection, subject, None, actor="ann", reason="asked to")
    assert (counted.rejected, erased.rejected) == (3, 3)
    assert await ledger.value("select count(*) from gateway.rejected") == 2
    audit = await ledger.row("select actor, action, route, reason from gateway.audit")
    assert tuple(audit.values()) == ("ann", "erase", "stripe", "asked to")


async def test_an_event_that_was_only_ever_refused_can_be_erased(connection: Connection) -> None:
    await keep_rejected(connection, [row(body=b'{"id": "evt_9"}')], Bounds(50, 10**9))
    subject = ErasureSubject(event_id="evt_9")
    erased, _ = await erase(connection, subject, None, actor="ann", reason="asked to")
    assert (erased.events, erased.rejected) == (0, 1)
    with pytest.raises(NotFound):
        await erase(connection, subject, None, actor="ann", reason="asked to")


async def test_clocks_are_compared_with_those_of_verified_events(
    database_url: str, connection: Connection
) -> None:
    assert await compare_clocks(connection) == (0, None)
    claims = [make_claim(f"evt_{n}")._replace(clock_s=float(n)) for n in range(5)]
    await claim_all(database_url, [*claims, make_claim("evt_without")])
    assert await compare_clocks(connection) == (5, 2.0)


# The writer


@pytest.fixture
def settings(project: Project) -> Settings:
    return Settings(
        database_url=SecretStr(project.environ["GATEWAY_DATABASE_URL"]),
        redis_url=SecretStr(project.environ["GATEWAY_REDIS_URL"]),
        config=project.directory / "config/routes.yaml",
        data_dir=project.directory / ".gateway",
    )


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIPE_WEBHOOK_SECRET", STRIPE_SECRET)
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", GITHUB_SECRET)


@pytest.fixture
def office(
    project: Project, settings: Settings, connection: Connection, secrets: None
) -> OperationContext:
    woken: list[int] = []

    async def wake(ids: Sequence[int]) -> None:
        woken.extend(ids)

    file = project.directory / "config/routes.yaml"
    project.write(
        "config/routes.yaml", file.read_text().replace("handlers.effects", "shop.effects")
    )
    project.write("shop/__init__.py", "")  # `handlers` may be those of another test
    project.write("shop/effects.py", HANDLERS)
    with in_project(project.directory):
        loaded = load_project(settings, with_secrets=True)
    return OperationContext(
        settings=settings, ledger=connection, actor="ann", wake=wake, loaded=loaded
    )


def refused_of(
    office: OperationContext, url: str, *, rows: int = 200
) -> tuple[RejectedRequests, CollectorRegistry]:
    metrics = Metrics()
    assert office.loaded is not None
    refused = RejectedRequests(
        url,
        recorder=make_recorder(office.loaded),
        bounds=Bounds(rows, 10**8),
        largest_body=64 * 1024,
        counted=metrics.rejected,
    )
    return refused, metrics.registry


def outcomes(registry: CollectorRegistry) -> dict[str, float | None]:
    return {
        outcome: registry.get_sample_value("gateway_rejected_total", {"outcome": outcome})
        for outcome in ("kept", "left_out", "lost", "trimmed")
    }


async def test_a_flood_of_bad_signatures_writes_a_bounded_number_of_rows(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    """As many as come in a minute: one write, of the few places that there are."""
    refused, registry = refused_of(office, database_url)
    body, headers = stripe_request("evt_1", secret="whsec_forged")
    for n in range(50_000):
        refused.keep(turned_away(body, headers, address=f"203.0.113.{n % 3}"))
    await refused.stop()
    assert await ledger.value("select count(*) from gateway.rejected") == PER_ROUTE
    found = outcomes(registry)
    assert found == {"kept": PER_ROUTE, "left_out": 50_000 - PER_ROUTE, "lost": 0, "trimmed": 0}
    identity = await ledger.value("select max(id) from gateway.rejected")
    assert identity == PER_ROUTE, "no row was written that was then taken away"


async def test_what_waits_for_postgres_is_written_together(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    """In a commit for each kind: a stop has no time for a commit of each request."""
    refused, _ = refused_of(office, database_url, rows=1000)
    kinds = ("DUPLICATE", "BAD_PAYLOAD")
    refused.keep_later(
        [turned_away(b"{%d}" % n, code=kinds[n % 2], verified_by="env:A") for n in range(1000)]
    )
    await until(lambda: ledger.value("select count(*) = 1000 from gateway.rejected"))
    assert await ledger.value("select count(distinct xmin::text) from gateway.rejected") == 2
    await refused.stop()


async def test_what_a_ledger_that_is_away_does_not_take_is_counted_and_gone(
    office: OperationContext, ledger: Reader
) -> None:
    refused, registry = refused_of(office, "postgresql://127.0.0.1:1/none")
    for _ in range(3):
        refused.keep(turned_away())
    await refused.stop()
    assert outcomes(registry) == {"kept": 0, "left_out": 0, "lost": 3, "trimmed": 0}


async def test_no_ring_is_kept_where_none_is_wanted(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    refused, _ = refused_of(office, database_url, rows=0)
    refused.keep(turned_away())
    await refused.stop()
    assert await ledger.value("select count(*) from gateway.rejected") == 0


async def test_credentials_are_not_kept(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    refused, _ = refused_of(office, database_url)
    hidden = {
        "authorization": "Bearer tok-1", "cookie": "sid=tok-2", "x-gitlab-token": "tok-3",
        "x-custom": f"key {STRIPE_SECRET}", "x-fine": "fine",
    }  # fmt: skip
    refused.keep(turned_away(b"{}", hidden, path="/webhooks/stripe?token=tok-4"))
    refused.keep(turned_away(f'"{GITHUB_SECRET}"'.encode(), {}))
    await refused.stop()
    text = await ledger.value(
        "select string_agg(r::text || coalesce(convert_from(body, 'UTF8'), ''), '')"
        " from gateway.rejected r"
    )
    assert "fine" in text
    for secret in ("tok-1", "tok-2", "tok-3", "tok-4", STRIPE_SECRET, GITHUB_SECRET):
        assert secret not in text


# Release


async def keep(office: OperationContext, url: str, *requests: Any) -> list[int]:
    refused, _ = refused_of(office, url)
    for request in requests:
        refused.keep(request)
    await refused.stop()
    rows = await REJECTED.run(office, RejectedParams())
    return sorted(r["id"] for r in rows["items"])


async def release(office: OperationContext, **params: Any) -> list[ReleasedRow]:
    page = await RELEASE.run(office, ReleaseParams(**params))
    assert page["next"] is None
    return page["items"]


def signed(event_id: str, **more: Any) -> Any:
    body, headers = stripe_request(event_id)
    return turned_away(body, headers, **more)


def forged(event_id: str, **more: Any) -> Any:
    body, headers = stripe_request(event_id, secret="whsec_forged")
    return turned_away(body, headers, **more)


async def test_what_is_valid_now_is_claimed_and_what_is_forged_stays_out(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    good, bad = await keep(office, database_url, signed("evt_1"), forged("evt_2"))
    [first, second] = await release(office, all=True, reason="the secret is right now")
    assert (first["id"], first["outcome"], first["event_ids"]) == (good, "accepted", ["evt_1"])
    assert (second["id"], second["outcome"]) == (bad, "refused")
    assert "BAD_SIGNATURE" in (second["detail"] or "")
    event = await ledger.row(
        "select event_id, verified_by, unverified, clock_s is not null as timed"
        " from gateway.processed_events"
    )
    assert tuple(event.values()) == ("evt_1", "env:STRIPE_WEBHOOK_SECRET", False, True)
    assert await ledger.statuses() == {"pending": 1}
    audit = await ledger.row("select actor, action, route, event_id, reason from gateway.audit")
    assert tuple(audit.values()) == (
        "ann", "release", "stripe", "evt_1", "the secret is right now",
    )  # fmt: skip
    kept = await ledger.row("select * from gateway.rejected where id = $1", good)
    assert kept["released_as"] == ["evt_1"]
    assert kept["released_at"] is not None
    assert (kept["headers"], kept["body"]) == (None, None)
    counted = await ledger.rows("select outcome, n from gateway.tallies where route = 'stripe'")
    assert counted == [{"outcome": "accepted", "n": 1}]


@pytest.mark.parametrize("kept_as", ["stripe", "payments"])
async def test_a_request_of_a_renamed_route_is_released_to_its_identity(
    kept_as: str, office: OperationContext, database_url: str, ledger: Reader
) -> None:
    """Also one that a `serve` kept under the name, since it had started without the ledger."""
    await ledger.run(
        "insert into gateway.names (kind, name, identity) values ('route', 'stripe', 'payments')"
    )
    await keep(office, database_url, signed("evt_1"))
    await ledger.run("update gateway.rejected set route = $1", kept_as)
    page = await RELEASE.perform(office, ReleaseParams(all=True))
    [released] = page["items"]
    assert (released["outcome"], released["route"]) == ("accepted", "stripe")
    assert await ledger.value("select route from gateway.processed_events") == "payments"


async def test_a_release_keeps_the_time_when_it_came(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    """An hour later the signed time is long stale, and was not when it came."""
    came_at = datetime.now(UTC) - HOUR
    body, _ = stripe_request("evt_1")
    sent = PROVIDERS["stripe"].sign(
        body, secret=STRIPE_SECRET.encode(), id="", type="", now=came_at
    )
    await keep(office, database_url, turned_away(body, sent.headers, at=came_at))
    [released] = await release(office, all=True)
    assert released["outcome"] == "accepted"
    assert await ledger.value("select received_at from gateway.processed_events") == came_at


async def test_what_was_stale_when_it_came_stays_stale(
    office: OperationContext, database_url: str
) -> None:
    came_at = datetime.now(UTC)
    body, _ = stripe_request("evt_1")
    sent = PROVIDERS["stripe"].sign(
        body, secret=STRIPE_SECRET.encode(), id="", type="", now=came_at - HOUR
    )
    stale = turned_away(body, sent.headers, at=came_at, code="STALE_TIMESTAMP")
    await keep(office, database_url, stale)
    [released] = await release(office, all=True)
    assert released["outcome"] == "refused"
    assert "as of when it came" in (released["detail"] or "")


async def test_two_who_release_the_same_leave_one_event(
    office: OperationContext,
    database_url: str,
    ledger: Reader,
    project: Project,
    settings: Settings,
) -> None:
    await keep(office, database_url, *(signed(f"evt_{n}") for n in range(5)))
    others = [await connect(database_url, name="test") for _ in range(3)]
    offices = [
        OperationContext(
            settings=settings, ledger=own, actor=f"racer {n}", wake=office.wake,
            loaded=office.loaded,
        )
        for n, own in enumerate(others)
    ]  # fmt: skip
    answers = await asyncio.gather(*(release(own, all=True) for own in offices))
    told = Counter(row["outcome"] for rows in answers for row in rows)
    assert told["accepted"] == 5
    assert set(told) <= {"accepted", "already"}
    assert await ledger.value("select count(*) from gateway.processed_events") == 5
    assert await ledger.value("select count(*) from gateway.audit") == 5
    for own in others:
        await own.close()


async def test_a_second_release_finds_it_done(office: OperationContext, database_url: str) -> None:
    [id] = await keep(office, database_url, signed("evt_1"))
    await release(office, ids=[id])
    [again] = await release(office, ids=[id])
    assert (again["outcome"], again["event_ids"]) == ("already", ["evt_1"])
    assert await release(office, all=True) == []


async def test_what_the_sender_has_sent_again_is_a_duplicate(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    [id] = await keep(office, database_url, signed("evt_1"))
    [released] = await release(office, ids=[id])
    assert released["outcome"] == "duplicate"
    assert await ledger.statuses() == {"pending": 1}


async def test_a_repeated_body_is_released_only_if_a_person_says_so(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    body, headers = github_request("guid_1")
    _, again = github_request("guid_2")
    requests = [
        turned_away(body, h, route="github", path="/webhooks/github") for h in (headers, again)
    ]
    await keep(office, database_url, *requests)
    first, second = await release(office, all=True)
    assert (first["outcome"], second["outcome"]) == ("accepted", "refused")
    assert "REPEATED_BODY: event guid_1" in (second["detail"] or "")
    assert await release(office, all=True) == [], "a repeat is not among all that match"
    [dry] = await release(office, all=True, code="REPEATED_BODY", dry_run=True)
    assert (dry["outcome"], dry["event_ids"]) == ("valid", ["guid_2"])
    [accepted] = await release(office, ids=[second["id"]], reason="they left the team again")
    assert (accepted["outcome"], accepted["event_ids"]) == ("accepted", ["guid_2"])
    row = await ledger.row(
        "select repeat_of from gateway.processed_events where event_id = 'guid_2'"
    )
    assert row["repeat_of"] == "guid_1"
    audit = await ledger.row("select action, reason from gateway.audit where event_id = 'guid_2'")
    assert (audit["action"], audit["reason"]) == ("release", "they left the team again")


async def test_all_repeats_of_a_route_are_released_by_their_code(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    body, headers = github_request("guid_1")
    repeats = [github_request(f"guid_{n}")[1] for n in (2, 3)]
    await keep(
        office,
        database_url,
        turned_away(body, headers, route="github", path="/webhooks/github"),
        *(
            turned_away(body, h, route="github", path="/webhooks/github", code="REPEATED_BODY")
            for h in repeats
        ),
    )
    [only] = await release(office, all=True)
    assert only["event_ids"] == ["guid_1"]
    released = await release(office, all=True, code="REPEATED_BODY")
    assert [one["outcome"] for one in released] == ["accepted", "accepted"]
    assert await ledger.value("select count(*) from gateway.processed_events") == 3


async def test_a_body_that_was_not_kept_cannot_be_released(
    office: OperationContext, database_url: str
) -> None:
    await keep(
        office,
        database_url,
        signed("evt_1")._replace(body=None, body_bytes=300_000),
        turned_away(None, code="TIMEOUT"),
    )
    large, late = await release(office, all=True)
    assert large["detail"] == (
        "its body of 300,000 bytes was not kept, so that it cannot be verified again"
    )
    assert late["detail"] == "its body never came, so that it cannot be verified again"


async def test_what_came_to_a_wrong_url_can_be_released_to_its_route(
    office: OperationContext, database_url: str
) -> None:
    lost = signed("evt_1", route="", code="NOT_FOUND", path="/hooks/stripe")
    [id] = await keep(office, database_url, lost)
    [told] = await release(office, ids=[id])
    assert "--to-route" in (told["detail"] or "")
    [told] = await release(office, ids=[id], to_route="github")
    assert told["outcome"] == "refused"
    [told] = await release(office, ids=[id], to_route="stripe")
    assert (told["outcome"], told["route"]) == ("accepted", "stripe")
    with pytest.raises(NotFound, match="expected"):
        await release(office, ids=[id], to_route="stripes")


async def test_what_is_older_than_keys_are_sure_to_be_kept_is_not_let_in(
    office: OperationContext, database_url: str
) -> None:
    """Its event may have been accepted, and its key forgotten: it would take effect twice."""
    assert office.loaded is not None
    [route] = [r for r in office.loaded.config.routes if r.name == "stripe"]
    safe = route.retention.key - route.provider.redelivery
    old_duplicate = (safe + HOUR, "DUPLICATE")
    ages = ((safe - HOUR, "BAD_SIGNATURE"), (safe + HOUR, "BAD_SIGNATURE"), old_duplicate)
    for n, (age, code) in enumerate(ages):
        came_at = datetime.now(UTC) - age
        body, _ = stripe_request(f"evt_{n}")
        sent = PROVIDERS["stripe"].sign(
            body, secret=STRIPE_SECRET.encode(), id="", type="", now=came_at
        )
        await keep(office, database_url, turned_away(body, sent.headers, at=came_at, code=code))
    young, old = await release(office, all=True)
    assert young["outcome"] == "accepted"
    assert "could take effect twice" in (old["detail"] or "")
    [another] = await release(office, all=True, code="DUPLICATE")
    assert another["outcome"] == "accepted", "its event is known, and this is to be another one"


async def test_a_dry_run_verifies_and_changes_nothing(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    await keep(office, database_url, signed("evt_1"), forged("evt_2"))
    rows = await release(office, all=True, dry_run=True)
    assert [row["outcome"] for row in rows] == ["valid", "refused"]
    assert await ledger.value("select count(*) from gateway.processed_events") == 0
    assert await ledger.value("select count(*) from gateway.audit") == 0
    unreleased = "select count(*) from gateway.rejected where released_at is null"
    assert await ledger.value(unreleased) == 2


async def test_all_are_released_piece_by_piece(
    office: OperationContext, connection: Connection, ledger: Reader
) -> None:
    rows = [row(n, body=None) for n in range(120)]
    await keep_rejected(connection, rows, Bounds(500, 10**9))
    sizes, after = [], None
    while True:
        page = await RELEASE.run(office, ReleaseParams(all=True, after=after))
        sizes.append(len(page["items"]))
        after = page["next"]
        if after is None:
            break
    assert sizes == [50, 50, 20]


async def test_a_release_says_which_or_all(office: OperationContext) -> None:
    for params in (ReleaseParams(), ReleaseParams(ids=[1], all=True)):
        with pytest.raises(CommandFailed):
            await RELEASE.run(office, params)
    [gone] = await release(office, ids=[7])
    assert gone["outcome"] == "already"


async def test_groups_and_rows_say_why(office: OperationContext, database_url: str) -> None:
    await keep(office, database_url, *(forged(f"evt_{n}") for n in range(PER_SENDER)))
    body, headers = github_request("guid_1")
    await keep(office, database_url, turned_away(body, headers))
    groups = await REJECTED_GROUPS.run(office, RejectedGroupParams())
    assert [(g["count"], g["cause"]) for g in groups] == [
        (1, "wrong_url"),
        (PER_SENDER, "unknown_secret"),
    ]
    page = await REJECTED.run(office, RejectedParams(limit=3, code="BAD_SIGNATURE"))
    assert len(page["items"]) == 3
    more = await REJECTED.run(office, RejectedParams(limit=50, after=page["next"]))
    assert len(more["items"]) == PER_SENDER + 1 - 3
    assert (await REJECTED.run(office, RejectedParams(route="github")))["items"] == []


async def test_a_body_is_shown_when_asked_for_and_obeys_redact(
    office: OperationContext, database_url: str, project: Project, tmp_path: Path
) -> None:
    [id] = await keep(office, database_url, turned_away(b'{"email": "a@b.c"}', {}))
    shown = await SHOW_REJECTED.run(office, ShowRejectedParams(rejected_id=id))
    assert (shown["body"], shown["body_kept"]) == (None, True)
    shown = await SHOW_REJECTED.run(office, ShowRejectedParams(rejected_id=id, body=True))
    assert shown["body"] == '{"email": "a@b.c"}'
    text = (project.directory / "config/routes.yaml").read_text()
    cut = text.replace("provider: stripe\n", "provider: stripe\n    redact: [email]\n")
    project.write("config/routes.yaml", cut)
    fresh = OperationContext(
        settings=office.settings, ledger=office.ledger, actor="ann", wake=office.wake
    )
    shown = await SHOW_REJECTED.run(fresh, ShowRejectedParams(rejected_id=id, body=True))
    assert "a@b.c" not in (shown["body"] or "")
    with pytest.raises(NotFound):
        await SHOW_REJECTED.run(office, ShowRejectedParams(rejected_id=id + 1))


async def test_writing_down_goes_on_after_the_first_time(
    office: OperationContext, database_url: str, ledger: Reader
) -> None:
    refused, _ = refused_of(office, database_url)
    for n in (1, 2):
        refused.keep(turned_away())

        async def written(n: int = n) -> bool:
            return bool(await ledger.value("select count(*) from gateway.rejected") == n)

        await until(written)
    await refused.stop()


# Encrypted routes

KEY = "5f" + "0123456789abcdef" * 3 + "00112233445566"
PLAIN = "customer@example.com"


@pytest.fixture
def encrypted(
    project: Project, settings: Settings, connection: Connection, secrets: None,
    monkeypatch: pytest.MonkeyPatch,
) -> OperationContext:  # fmt: skip
    monkeypatch.setenv("GATEWAY_TEST_KEY", KEY)
    project.write(
        "config/routes.yaml",
        """
        keys: [env:GATEWAY_TEST_KEY]
        routes:
          stripe: {provider: stripe, secrets: [env:STRIPE_WEBHOOK_SECRET], encrypt: true}
          github: {provider: github, secrets: [env:GITHUB_WEBHOOK_SECRET]}
        """,
    )
    with in_project(project.directory):
        loaded = load_project(settings, with_secrets=True)

    async def wake(_: Sequence[int]) -> None: ...

    return OperationContext(
        settings=settings, ledger=connection, actor="ann", wake=wake, loaded=loaded
    )


async def test_of_an_encrypted_route_nothing_is_kept_in_plain_text(
    encrypted: OperationContext, database_url: str, ledger: Reader
) -> None:
    """Nor of a path that no route has: it may have been for that one. A release reads it."""
    body, headers = stripe_request("evt_1", extra=PLAIN)
    said = {**headers, "x-said": PLAIN}
    path = f"/webhooks/stripe?mail={PLAIN}"
    mine = turned_away(body, said, path=path)
    lost = turned_away(body, said, route="", code="NOT_FOUND", path=f"/other?mail={PLAIN}")
    ids = await keep(encrypted, database_url, mine, lost)
    text = await ledger.value("select string_agg(r::text, '') from gateway.rejected r")
    raw = await ledger.value("select string_agg(body, '') from gateway.rejected")
    assert PLAIN not in text
    assert PLAIN.encode() not in raw
    shown = await SHOW_REJECTED.run(encrypted, ShowRejectedParams(rejected_id=ids[0], body=True))
    assert (shown["headers"], shown["body"], shown["body_kept"]) == (None, None, True)
    assert shown["key_id"] is not None
    [released] = await release(encrypted, ids=ids[:1])
    assert (released["outcome"], released["event_ids"]) == ("accepted", ["evt_1"])
    [released] = await release(encrypted, ids=ids[1:2], to_route="stripe")
    assert released["outcome"] == "duplicate"
    stored = await ledger.value("select string_agg(e::text, '') from gateway.processed_events e")
    assert PLAIN not in stored


async def test_what_is_sealed_for_one_row_opens_in_no_other(
    encrypted: OperationContext, database_url: str, ledger: Reader
) -> None:
    body, headers = stripe_request("evt_1")
    [id] = await keep(encrypted, database_url, turned_away(body, headers))
    await ledger.run("update gateway.rejected set at = at - interval '1 s'")
    [released] = await release(encrypted, ids=[id])
    assert released["outcome"] == "refused"
    assert "encrypted, and cannot be read" in (released["detail"] or "")


async def test_an_erasure_takes_what_is_sealed_unread(
    encrypted: OperationContext, connection: Connection, database_url: str, ledger: Reader
) -> None:
    body, headers = stripe_request("evt_1")
    await keep(encrypted, database_url, turned_away(body, headers))
    subject = ErasureSubject(account="acct_7")
    erased, _ = await erase(connection, subject, None, actor="ann", reason="asked to")
    assert erased.rejected == 1
