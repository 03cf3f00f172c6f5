"""The Admin API: behind its token, in the same words as the commands, and never a 500."""

import asyncio
import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import httpx
import orjson
import pytest
from starlette.applications import Starlette

from gateway.api.http import LARGEST_BODY, routes
from gateway.api.operations import OPERATIONS
from gateway.base.secrets import Secret
from gateway.config.settings import Settings
from gateway.ledger.connection import open_pool
from gateway.operations.context import BackgroundTasks, OperationContext
from tests.support.guarding import a_guard
from tests.support.ledger import Reader, claim_all, make_claim

TOKEN = "a-token-for-the-tests"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    pool = await open_pool(database_url, name="test api", size=2, command_timeout_s=10)
    background, woken = BackgroundTasks(), list[int]()

    async def wake(delivery_ids: Sequence[int]) -> None:
        woken.extend(delivery_ids)

    def open_office(actor: str) -> OperationContext:
        return OperationContext(
            settings=Settings(), ledger=pool, actor=actor, wake=wake, background=background
        )

    app = Starlette(
        routes=routes(
            OPERATIONS,
            token=Secret(TOKEN.encode()),
            guard=a_guard(),
            open_office=open_office,
        )
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://gateway/api/v1",
        headers={"authorization": f"Bearer {TOKEN}"},
    ) as client:
        yield client
    await background.stop()
    await pool.close()


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
@pytest.mark.parametrize("path", ["/status", "/openapi.json", "/events/evt_1", "/nothing", "/"])
async def test_without_its_token_nothing_answers(
    api: httpx.AsyncClient, path: str, authorization: str
) -> None:
    answer = await api.get(path, headers={"authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"] == "UNAUTHORIZED"


async def test_a_token_that_is_no_ascii_is_a_wrong_one(api: httpx.AsyncClient) -> None:
    answer = await api.get("/status", headers={b"authorization": b"Bearer \xff\xfe"})
    assert answer.status_code == 401


async def test_an_event_is_shown_with_all_that_happened_to_it(
    api: httpx.AsyncClient, database_url: str
) -> None:
    await claim_all(database_url, [make_claim("evt/1 ü")])
    answer = await api.get("/events/evt%2F1%20%C3%BC")
    assert answer.status_code == 200
    [event] = answer.json()
    assert event["event_id"] == "evt/1 ü"
    assert [d["status"] for d in event["deliveries"]] == ["pending"]
    missing = await api.get("/events/evt_none")
    assert (missing.status_code, missing.json()["error"]) == (404, "NOT_FOUND")


async def test_an_action_is_audited_with_its_actor(
    api: httpx.AsyncClient, database_url: str, ledger: Reader
) -> None:
    [claimed] = await claim_all(database_url, [make_claim("evt_1")])
    [delivery_id] = claimed.delivery_ids
    answer = await api.post(
        f"/deliveries/{delivery_id}/discard",
        json={"reason": "a test order"},
        headers={"gateway-actor": "ann"},
    )
    assert answer.status_code == 200
    assert await ledger.value("select status from gateway.deliveries") == "discarded"
    [row] = await ledger.rows("select actor, action, reason from gateway.audit")
    assert tuple(row.values()) == ("ann (api)", "discard", "a test order")
    again = await api.post(f"/deliveries/{delivery_id}/discard", json={})
    assert (again.status_code, again.json()["error"]) == (409, "REFUSED")
    gone = await api.post("/deliveries/99/replay", json={})
    assert gone.status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "no JSON"),
        (b"[]", "no object"),
        (b'{"reason": 7}', "reason: found 7; expected text"),
        (b'{"raeson": "x"}', "raeson: found an unknown key; expected one of"),
        (b'{"reason": "a\\u0000b"}', "reason: found"),
        (b'{"reason": "\\ud800"}', "no JSON"),
        (b'{"delivery_id": 2}', "found delivery_id beside the path"),
    ],
)
async def test_what_cannot_be_used_is_told(api: httpx.AsyncClient, body: bytes, said: str) -> None:
    answer = await api.post("/deliveries/1/replay", content=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "BAD_REQUEST")
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("rate", "status"), [("10", 200), ("10.0", 200), ("1e1", 200), ("10.5", 400), ("true", 400)]
)
async def test_an_integer_may_be_written_as_json_schema_allows(
    api: httpx.AsyncClient, rate: str, status: int
) -> None:
    body = f'{{"action": "replay", "dry_run": true, "rate": {rate}}}'
    assert (await api.post("/bulk", content=body)).status_code == status


@pytest.mark.parametrize("id", ["1_0", "+10", "10.0", "%2010", "010", "٣", "9" * 20, "0", "-1"])
async def test_only_plain_digits_name_a_delivery(api: httpx.AsyncClient, id: str) -> None:
    answer = await api.post(f"/deliveries/{id}/replay", json={})
    assert (answer.status_code, answer.json()["error"]) == (400, "BAD_REQUEST")


async def test_a_body_that_is_no_text_is_shown_exactly_too(
    api: httpx.AsyncClient, database_url: str
) -> None:
    await claim_all(database_url, [make_claim("evt_1", body=b'{"a":"\xff"}'), make_claim("evt_2")])
    [event] = (await api.get("/events/evt_1")).json()
    assert (event["body"], b64decode(event["body_base64"])) == ('{"a":"\\xff"}', b'{"a":"\xff"}')
    [event] = (await api.get("/events/evt_2")).json()
    assert event["body"].startswith('{"id":"evt_2"')
    assert event["body_base64"] is None


async def test_a_body_that_is_too_large_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post("/deliveries/1/replay", content=b" " * (LARGEST_BODY + 1))
    assert answer.status_code == 413


async def test_the_largest_body_that_the_document_allows_is_read(api: httpx.AsyncClient) -> None:
    text = "\U0010ffff" * 1000
    body = dict.fromkeys(("account", "event_id", "route", "reason"), text)
    answer = await api.post("/erase", content=json.dumps({**body, "after": text * 8}))
    assert (answer.status_code, answer.json()["error"]) == (409, "REFUSED")


async def test_a_body_that_does_not_come_is_not_waited_for(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalls() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.api.http.BODY_WITHIN_S", 0.1)
    answer = await api.post("/deliveries/1/replay", content=stalls())
    assert (answer.status_code, answer.json()["error"]) == (408, "TIMEOUT")
    assert answer.headers["connection"] == "close"


async def test_of_many_wrong_names_a_few_are_told(api: httpx.AsyncClient) -> None:
    """Each costs a search for what was meant."""
    answer = await api.get("/events", params={f"rout{n}": "1" for n in range(5000)})
    assert answer.status_code == 400
    assert answer.json()["detail"].endswith("; and 4995 more")
    assert len(answer.content) < 2000


@pytest.mark.parametrize("path", ["/events", "/dead"])
@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
async def test_a_place_beyond_all_times_is_none(api: httpx.AsyncClient, path: str, at: str) -> None:
    """Postgres was said to be away, since asyncpg cannot write it."""
    values = [at, 1] if path == "/dead" else [at, "stripe", "evt_1"]
    place = urlsafe_b64encode(orjson.dumps(values)).decode()
    answer = await api.get(path, params={"after": place})
    assert (answer.status_code, answer.json()["error"]) == (404, "NOT_FOUND")


async def test_who_waits_for_a_connection_is_answered_too(
    api: httpx.AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.api.http.ANSWER_WITHIN_S", 0.5)
    locker = await asyncpg.connect(database_url)
    async with locker.transaction():
        await locker.execute("lock table gateway.deliveries in access exclusive mode")
        answers = await asyncio.gather(*(api.get("/dead") for _ in range(8)))
        assert {answer.status_code for answer in answers} == {503}
    assert (await api.get("/dead")).status_code == 200
    await locker.close()


async def test_another_method_is_told_which_there_are(api: httpx.AsyncClient) -> None:
    answer = await api.delete("/deliveries/1/replay")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_pause_is_begun_listed_and_ended(
    api: httpx.AsyncClient, database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    order = {"route": "stripe", "handler": "handlers.count", "reason": "mail is down"}
    paused = await api.post("/pause", json=order, headers={"gateway-actor": "ann"})
    assert (paused.status_code, paused.json()["waiting"]) == (200, 1)
    [listed] = (await api.get("/pauses")).json()
    assert (listed.pop("since"), listed) == (
        paused.json()["since"],
        order | {"actor": "ann (api)"},
    )
    unknown = await api.post("/pause", json={"route": "strip", "reason": "why"})
    assert (unknown.status_code, unknown.json()["error"]) == (404, "NOT_FOUND")
    assert "known are" in unknown.json()["detail"]
    assert (await api.post("/pause", json={"route": "stripe"})).status_code == 400
    del order["reason"]
    assert (await api.post("/resume", json=order)).json()["still_paused"] == []
    assert (await api.post("/resume", json=order)).status_code == 409
    assert (await api.get("/pauses")).json() == []


async def test_an_erasure_is_counted_first_and_needs_a_reason(
    api: httpx.AsyncClient, database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    counted = await api.post("/erase", json={"event_id": "evt_1", "dry_run": True})
    assert counted.json() == {
        "events": 1, "pending": 1, "dead": 0, "running": [], "rejected": 0, "spooled": 0,
        "next": None,
    }  # fmt: skip
    for body in (
        {"event_id": "evt_1"},
        {"reason": "asked"},
        {"event_id": "evt_1", "account": "acct_1", "reason": "asked"},
        {"account": "acct_1", "reason": "of acct_1"},
    ):
        assert (await api.post("/erase", json=body)).status_code == 409
    assert await ledger.value("select count(*) from gateway.payloads") == 2
    erased = await api.post("/erase", json={"event_id": "evt_1", "reason": "asked"})
    assert erased.json() == counted.json()
    assert await ledger.value("select count(*) from gateway.payloads") == 1
    [shown] = (await api.get("/events/evt_1")).json()
    assert (shown["erased"]["actor"], shown["erased"]["reason"]) == ("api", "asked")
    gone = await api.post("/erase", json={"event_id": "evt_9", "reason": "asked"})
    assert gone.status_code == 404


async def test_a_prune_runs_in_pieces(api: httpx.AsyncClient, database_url: str) -> None:
    old = datetime.now(UTC) - timedelta(days=400)
    claims = [make_claim(handlers=[], route=r, received_at=old) for r in ("stripe", "gone")]
    await claim_all(database_url, claims)
    for dry_run in (True, False):
        answer = await api.post("/prune", json={"dry_run": dry_run})
        assert answer.json() | {"looked_at": 0} == {
            "keys": 1, "payloads": 0, "dead": 0, "audit": 0, "days": 0, "looked_at": 0,
            "left_alone": ["gone"], "next": None,
        }  # fmt: skip
    nonsense = await api.post("/prune", json={"after": "bm9uc2Vuc2U="})
    assert (nonsense.status_code, nonsense.json()["error"]) == (404, "NOT_FOUND")
    beginning = b64encode(b'[[["1970-01-01T00:00:00Z", "", ""]], 7, 0]').decode()
    assert (await api.post("/prune", json={"after": beginning})).status_code == 200
