"""Bodies that come again: honest ones get in, captured ones do not, and none is lost unseen."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from gateway.providers.github import UNIQUE
from tests.support.ledger import Reader
from tests.support.octokit import Example, examples
from tests.support.processes import Project, Serving, github_request, locked
from tests.support.waiting import until


@pytest.fixture
async def reader(module_project: Project) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(module_project.environ["GATEWAY_DATABASE_URL"])
    yield Reader(connection)
    await connection.close()


async def send_all(
    serving: Serving, examples: Sequence[Example], event: str | None = None
) -> list[tuple[int, str]]:
    """Send each under a fresh GUID; return the statuses, and what the answers say."""
    requests = [
        github_request(str(uuid4()), event or example.event, body=example.body)
        for example in examples
    ]
    answers = await serving.post_all(requests, path="/webhooks/github")
    said = [(answer.status_code, answer.json()) for answer in answers]
    return [(status, answer.get("status") or answer["error"]) for status, answer in said]


async def test_every_example_of_octokit_is_sent_twice(serving: Serving, reader: Reader) -> None:
    sent = examples()
    assert set(await send_all(serving, sent)) == {(200, "accepted")}
    for example, answer in zip(sent, await send_all(serving, sent), strict=True):
        expected = (403, "REPEATED_BODY") if example.type in UNIQUE else (200, "accepted")
        assert answer == expected, example.type
    flagged = await reader.rows(
        "select type, count(*) from gateway.processed_events where repeat_of is not null group by 1"
    )
    expected_types = [one.type for one in sent if one.type not in UNIQUE]
    assert {row["type"]: row["count"] for row in flagged} == {
        type: expected_types.count(type) for type in expected_types
    }
    assert {"membership.added", "membership.removed", "organization.member_added"} <= {
        row["type"] for row in flagged
    }


async def test_a_captured_body_under_another_event_header_is_refused(serving: Serving) -> None:
    by_type = {example.type: example for example in examples()}
    for type in ("push", "issues.opened", "membership.added", "ping"):
        captured = by_type[type]
        captured = captured._replace(payload=captured.payload | {"of_this_test": str(uuid4())})
        assert await send_all(serving, [captured]) == [(200, "accepted")]
        for other in {"membership", "ping", "push", "not_yet_known"} - {captured.event}:
            answers = await send_all(serving, [captured], other)
            assert answers == [(403, "REPEATED_BODY")], (type, other)


SECRET = "lemon-and-shopify"
ROUTES = """\
routes:
  lemon: {provider: lemon-squeezy, secrets: [env:OTHER_SECRET], handlers: [handlers.effects]}
  shop: {provider: shopify, secrets: [env:OTHER_SECRET]}
"""
WINDOW = timedelta(days=1, minutes=3)
"""Lemon Squeezy's retries, and a day."""


def signed(body: bytes) -> bytes:
    return hmac.digest(SECRET.encode(), body, hashlib.sha256)


@pytest.fixture
def shop(project: Project) -> Project:
    project.environ["OTHER_SECRET"] = SECRET
    project.write("config/routes.yaml", ROUTES)
    return project


async def test_the_same_body_under_several_topics_is_several_events(
    shop: Project, ledger: Reader
) -> None:
    body = json.dumps({"id": 820982911946154508, "total_price": "199.00"}).encode()
    topics = ("orders/create", "orders/paid", "orders/updated")
    with shop.serve() as serving:
        await serving.ready()
        for topic in topics:
            headers = {
                "x-shopify-hmac-sha256": base64.b64encode(signed(body)).decode(),
                "x-shopify-webhook-id": str(uuid4()),
                "x-shopify-topic": topic,
            }
            answer = await serving.post(body, headers, path="/webhooks/shop")
            assert (answer.status_code, answer.json()["status"]) == (200, "accepted"), topic
    rows = await ledger.rows("select type, repeat_of from gateway.processed_events")
    assert {row["type"] for row in rows} == set(topics)
    assert sum(row["repeat_of"] is not None for row in rows) == 2


async def test_an_identical_body_is_a_duplicate_in_its_window_and_an_event_after_it(
    shop: Project, ledger: Reader
) -> None:
    """Of a sender without ids: inside the window it is kept, listed and can be released."""
    body = json.dumps({"meta": {"event_name": "subscription_paused"}, "data": {"id": "1"}}).encode()

    async def post(serving: Serving) -> tuple[str, str]:
        headers = {"x-signature": signed(body).hex()}
        answer = await serving.post(body, headers, path="/webhooks/lemon")
        assert answer.status_code == 200
        return answer.json()["status"], answer.json()["event_id"]

    async def kept() -> int:
        count: int = await ledger.value(
            "select count(*) from gateway.rejected where code = 'DUPLICATE' and body is not null"
        )
        return count

    with shop.serve() as serving:
        await serving.ready()
        status, first = await post(serving)
        assert status == "accepted"
        assert await post(serving) == ("duplicate", first)
        await until(kept)
        listed = shop.run("rejected", "--code", "DUPLICATE")
        assert first in listed.stdout, listed.stderr
        assert shop.run("rejected", "release", "--all", "--yes").returncode == 0
        assert await kept() == 1, "a person must judge it, by its id or its code"
        id = await ledger.value("select id from gateway.rejected")
        released = shop.run("rejected", "release", str(id), "--yes", "--reason", "paused again")
        assert released.returncode == 0, released.stderr
        audit = await ledger.row("select action, reason, event_id from gateway.audit")
        assert (audit["action"], audit["reason"]) == ("release", "paused again")
        assert await ledger.value("select count(*) from gateway.processed_events") == 2
        assert audit["event_id"] != first

        just_inside = WINDOW - timedelta(minutes=1)
        await ledger.run(
            "update gateway.processed_events set received_at = now() - $1::interval", just_inside
        )
        assert await post(serving) == ("duplicate", first)
        await ledger.run(
            "update gateway.processed_events set received_at = now() - $1::interval", WINDOW
        )
        status, later = await post(serving)
        assert status == "accepted"
        assert later not in {first, audit["event_id"]}
        assert await post(serving) == ("duplicate", later)
    deliveries = await ledger.rows("select event_id from gateway.deliveries")
    assert {row["event_id"] for row in deliveries} == {first, audit["event_id"], later}


PAUSED = json.dumps({"meta": {"event_name": "subscription_paused"}, "data": {"id": "7"}}).encode()
LEMON = (PAUSED, {"x-signature": signed(PAUSED).hex()})
KEPT = "select coalesce(sum(copies), 0) from gateway.rejected where code = 'DUPLICATE'"


@pytest.mark.parametrize(
    "option", ["", "encrypt: true, ", "redact: [data.id], redact_at: store, "], ids=str
)
async def test_identical_bodies_that_come_at_once_are_one_row_with_their_number(
    shop: Project, ledger: Reader, option: str
) -> None:
    """Also if the process is killed right after its answers: they are committed before them."""
    shop.environ["TEST_KEY"] = "5f" + "0123456789abcdef" * 3 + "00112233445566"
    routes = ROUTES.replace("lemon: {", "lemon: {" + option)
    shop.write("config/routes.yaml", "keys: [env:TEST_KEY]\n" + routes)
    with shop.serve() as serving:
        await serving.ready()
        answers = await serving.post_all([LEMON] * 30, path="/webhooks/lemon")
        found = [answer.json()["status"] for answer in answers]
        assert (found.count("accepted"), found.count("duplicate")) == (1, 29)
        serving.running.kill()
    assert await ledger.value(KEPT) == 29
    [row] = json.loads(shop.run("rejected", "--json").stdout)
    assert (row["copies"], row["body_kept"]) == (29, True)
    assert "29 copies" in shop.run("rejected", COLUMNS="200").stdout
    release = ("rejected", "release", "--all", "--code", "DUPLICATE", "--yes")
    assert "1 accepted" in shop.run(*release).stdout
    assert await ledger.value("select count(*) from gateway.processed_events") == 2

    with shop.serve() as serving:  # after the release another copy is kept again
        await serving.ready()
        answer = await serving.post(*LEMON, path="/webhooks/lemon")
        assert answer.json()["status"] == "duplicate"
        query = "select count(*) from gateway.rejected where released_at is null"
        assert await ledger.value(query) == 1
    assert "1 accepted" in shop.run(*release).stdout
    assert await ledger.value("select count(*) from gateway.processed_events") == 3


async def test_a_duplicate_is_not_acknowledged_before_it_is_kept(
    shop: Project, ledger: Reader
) -> None:
    with shop.serve() as serving:
        await serving.ready()
        assert (await serving.post(*LEMON, path="/webhooks/lemon")).status_code == 200
        async with locked(shop, "rejected"):
            answer = await serving.post(*LEMON, path="/webhooks/lemon")
            assert (answer.status_code, answer.json()) == (503, {"error": "UNAVAILABLE"})
        answer = await serving.post(*LEMON, path="/webhooks/lemon")
        assert (answer.status_code, answer.json()["status"]) == (200, "duplicate")
        assert await ledger.value(KEPT) >= 1
        [status] = json.loads(shop.run("status", "--json").stdout)
        assert all("accepted batches" not in found["text"] for found in status["attention"])


TOKENS = """\
routes:
  lab: {provider: gitlab, secrets: [env:OTHER_SECRET], handlers: [handlers.effects]}
  own:
    provider: bearer
    secrets: [env:OTHER_SECRET]
    handlers: [handlers.effects]
    scheme:
      token: {at: header.authorization, prefix: "Bearer "}
      type: query.type
      bodies_repeat: true
      redelivery: 1d
"""


async def test_a_duplicate_of_a_token_sender_can_be_released(
    project: Project, ledger: Reader
) -> None:
    """Its token is not kept: it was verified when it came."""
    token = "a-token-of-the-suite-0123456789"
    project.environ["OTHER_SECRET"] = token
    project.write("config/routes.yaml", TOKENS)
    body = b'{"object_kind":"push"}'
    lab = {"x-gitlab-token": token, "x-gitlab-event": "Push Hook"}
    own = {"authorization": f"Bearer {token}"}
    with project.serve() as serving:
        await serving.ready()
        for expected in ("accepted", "duplicate"):
            for path, headers in (("lab", lab), ("own?type=pushed", own)):
                answer = await serving.post(body, headers, path=f"/webhooks/{path}")
                assert answer.json().get("status") == expected, answer.text
        await until(lambda: ledger.value("select count(*) = 2 from gateway.rejected"))
    kept = await ledger.rows("select headers::text, verified_by from gateway.rejected")
    assert all(token not in row["headers"] for row in kept)
    assert {row["verified_by"] for row in kept} == {"env:OTHER_SECRET"}
    release = ("rejected", "release", "--all", "--code", "DUPLICATE", "--yes")
    moved = project.run(*release, "--to-route", "lab", "--dry-run").stdout
    assert "it was verified for 'own' when it came, and for no other" in moved
    released = project.run(*release)
    assert "2 accepted" in released.stdout, released.stdout + released.stderr
    events = await ledger.rows("select route, type from gateway.processed_events order by route")
    assert [(row["route"], row["type"]) for row in events] == [
        ("lab", "push"),
        ("lab", "push"),
        ("own", "pushed"),
        ("own", "pushed"),
    ]


BATCHES = """\
routes:
  meters:
    provider: hmac
    secrets: [env:OTHER_SECRET]
    handlers: [handlers.effects]
    scheme: {signature: {at: header.x-signature}, batch: json.readings, id: digest, type: json.type}
"""


async def test_an_item_of_a_batch_with_the_bytes_of_an_earlier_one_is_kept(
    shop: Project, ledger: Reader
) -> None:
    """Also if both are in one batch: each may be an event."""
    shop.write("config/routes.yaml", BATCHES)
    opened, closed = {"type": "valve.opened"}, {"type": "valve.closed"}
    body = json.dumps({"readings": [opened, closed, opened]}).encode()
    request = (body, {"x-signature": signed(body).hex()})
    with shop.serve() as serving:
        await serving.ready()
        answers = [await serving.post(*request, path="/webhooks/meters") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    kept = await ledger.rows(
        "select convert_from(body, 'UTF8') as body, copies from gateway.rejected"
    )
    assert {json.loads(row["body"])["type"]: row["copies"] for row in kept} == {
        "valve.opened": 3,
        "valve.closed": 1,
    }
    release = ("rejected", "release", "--all", "--code", "DUPLICATE", "--yes")
    assert "2 accepted" in shop.run(*release).stdout
    events = await ledger.rows(
        "select type, count(*) from gateway.processed_events group by type order by type"
    )
    assert [(row["type"], row["count"]) for row in events] == [
        ("valve.closed", 2),
        ("valve.opened", 2),
    ]


async def test_a_duplicate_of_a_sender_that_never_retries_waits_until_it_is_written(
    project: Project, ledger: Reader
) -> None:
    token = "a-token-of-the-suite-0123456789"
    project.environ["OTHER_SECRET"] = token
    routes = TOKENS.replace("      redelivery: 1d\n", "      retries: false\n")
    project.write("config/routes.yaml", routes)
    headers = {"authorization": f"Bearer {token}"}
    with project.serve() as serving:
        await serving.ready()
        path = "/webhooks/own?type=pushed"
        assert (await serving.post(b"{}", headers, path=path)).json()["status"] == "accepted"
        await ledger.run("alter table gateway.rejected rename to away")
        assert (await serving.post(b"{}", headers, path=path)).json()["status"] == "duplicate"
        await serving.running.says("refusals_not_noted")
        await ledger.run("alter table gateway.away rename to rejected")
        await until(lambda: ledger.value(f"select ({KEPT}) = 1"))
    assert await ledger.value("select verified_by from gateway.rejected") == "env:OTHER_SECRET"


async def test_a_release_that_fails_and_is_repeated_makes_one_event(
    shop: Project, ledger: Reader
) -> None:
    """Also if another copy comes between the two, whose time must not become that of the row."""
    release = ("rejected", "release", "--all", "--code", "DUPLICATE", "--yes")
    end_release = """
        select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and query ilike '%insert into gateway.audit%'
          and wait_event_type = 'Lock' and pid <> pg_backend_pid()
    """
    with shop.serve() as serving:
        await serving.ready()
        for _ in range(2):
            await serving.post(*LEMON, path="/webhooks/lemon")
        async with locked(shop, "audit"):  # the release has claimed its event, and goes no further
            releasing = asyncio.create_task(asyncio.to_thread(shop.run, *release))
            await until(lambda: ledger.value(end_release))
            assert (await releasing).returncode == 1
        answer = await serving.post(*LEMON, path="/webhooks/lemon")
        assert answer.json()["status"] == "duplicate"
        assert "1 duplicate" in (await asyncio.to_thread(shop.run, *release)).stdout
    assert await ledger.value("select count(*) from gateway.processed_events") == 2
    assert await ledger.value("select count(*) from gateway.deliveries") == 2


@pytest.mark.parametrize("option", ["", "encrypt: true, "], ids=str)
async def test_a_release_keeps_an_identical_body_as_a_duplicate(
    shop: Project, ledger: Reader, option: str
) -> None:
    """It was rejected for another reason, and may be another event than that of its body."""
    shop.environ["TEST_KEY"] = "5f" + "0123456789abcdef" * 3 + "00112233445566"
    routes = ROUTES.replace("lemon: {", "lemon: {" + option)
    shop.write("config/routes.yaml", "keys: [env:TEST_KEY]\n" + routes)
    rotated = {"x-signature": hmac.digest(b"the-next-secret", PAUSED, hashlib.sha256).hex()}
    with shop.serve() as serving:
        await serving.ready()
        first = (await serving.post(*LEMON, path="/webhooks/lemon")).json()["event_id"]
        for _ in range(2):
            answer = await serving.post(PAUSED, rotated, path="/webhooks/lemon")
            assert answer.json() == {"error": "BAD_SIGNATURE"}
        await until(lambda: ledger.value("select count(*) = 2 from gateway.rejected"))
    shop.environ["OTHER_SECRET"] = "the-next-secret"
    assert "2 duplicate" in shop.run("rejected", "release", "--all", "--yes").stdout
    assert await ledger.value("select count(*) from gateway.processed_events") == 1
    kept = await ledger.row(
        "select copies, verified_by, detail from gateway.rejected where code = 'DUPLICATE'"
    )
    assert (kept["copies"], kept["verified_by"]) == (2, "env:OTHER_SECRET")
    assert first in kept["detail"]
    release = ("rejected", "release", "--all", "--code", "DUPLICATE", "--yes")
    assert "1 accepted" in shop.run(*release).stdout
    assert await ledger.value("select count(*) from gateway.processed_events") == 2


async def test_a_release_of_a_batch_keeps_items_with_the_bytes_of_another_one(
    shop: Project, ledger: Reader
) -> None:
    shop.write("config/routes.yaml", BATCHES)
    opened, closed = {"type": "valve.opened"}, {"type": "valve.closed"}
    body = json.dumps({"readings": [opened, closed, opened]}).encode()
    shop.environ["OTHER_SECRET"] = "the-former-secret"
    with shop.serve() as serving:
        await serving.ready()
        answer = await serving.post(
            body, {"x-signature": signed(body).hex()}, path="/webhooks/meters"
        )
        assert answer.json() == {"error": "BAD_SIGNATURE"}
        await until(lambda: ledger.value("select count(*) = 1 from gateway.rejected"))
    shop.environ["OTHER_SECRET"] = SECRET
    assert "1 accepted" in shop.run("rejected", "release", "--all", "--yes").stdout
    assert await ledger.value("select count(*) from gateway.processed_events") == 2
    release = ("rejected", "release", "--all", "--code", "DUPLICATE", "--yes")
    assert "1 accepted" in shop.run(*release).stdout
    rows = await ledger.rows("select type from gateway.processed_events order by type")
    assert [row["type"] for row in rows] == ["valve.closed", "valve.opened", "valve.opened"]
