"""Every entry of the catalogue on a real server: routes in YAML, HTTP, events in Postgres."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import asyncpg
import httpx
import pytest

from gateway.providers import PROVIDERS
from gateway.providers.entries import entry_names, read_scheme
from gateway.providers.provider import Signed
from gateway.providers.schemes.keys import PublicKey
from tests.support.processes import Project, Serving
from tests.support.waiting import PATIENCE_S

VECTORS = Path(__file__).parents[1] / "vectors"
PUBLIC_URL = "https://gateway.example.com"
VERIFY_TOKEN = "a token that Meta shows"
NAMES = sorted(entry_names())


def load(name: str, case: str) -> dict[str, Any]:
    vector: dict[str, Any] = json.loads((VECTORS / name / f"{case}.json").read_bytes())
    return vector | {"provider": name}


def event_of(name: str) -> dict[str, Any]:
    """A request of the vendor that holds an event."""
    cases = [load(name, path.stem) for path in sorted((VECTORS / name).glob("*.json"))]
    return next(vector for vector in cases if vector["events"])


def make_secret(name: str) -> str:
    """With which we can sign: where the vendor published only a public key, one of our own."""
    vector = event_of(name)
    if "private_key" in vector:
        return str(vector["private_key"])
    is_public = isinstance(PROVIDERS[name].read_key(vector["secret"].encode()), PublicKey)
    return PROVIDERS[name].make_secret() if is_public else str(vector["secret"])


SECRETS = {name: make_secret(name) for name in NAMES}


def variable(name: str) -> str:
    return "SECRET_OF_" + name.upper().replace("-", "_")


@pytest.fixture(scope="module")
def serving(module_project: Project) -> Iterator[Serving]:
    """A route for every entry, and no handler."""
    routes: dict[str, Any] = {
        name: {"provider": name, "secrets": [f"env:{variable(name)}"], "handlers": []}
        for name in NAMES
    }
    for name in NAMES:
        if PROVIDERS[name].wants_token:
            routes[name]["verify_token"] = "env:VERIFY_TOKEN"
    module_project.write("config/routes.yaml", json.dumps({"routes": routes}))
    environ = {variable(name): secret for name, secret in SECRETS.items()}
    with module_project.serve(
        **environ, VERIFY_TOKEN=VERIFY_TOKEN, GATEWAY_PUBLIC_URL=PUBLIC_URL
    ) as process:
        asyncio.run(process.ready())
        yield process


def sign(name: str, vector: dict[str, Any]) -> Signed:
    """The vendor's body, signed now."""
    event = (vector["events"] or [{"id": None, "type": "ping"}])[0]
    return PROVIDERS[name].sign(
        vector["body"].encode(),
        secret=SECRETS[name].encode(),
        id=event["id"] or "evt_1",
        type=event["type"],
        now=datetime.now(UTC),
        url=f"{PUBLIC_URL}/webhooks/{name}",
    )


def id_of(event: dict[str, Any], vector: dict[str, Any], signed: Signed) -> str:
    """The id in the vendor's request, with the headers of which it is made as they are now."""
    if event["id"] is None:
        return hashlib.sha256(signed.body).hexdigest()
    id = str(event["id"])
    places = [place for choice in read_scheme(vector["provider"]).id for place in choice.places]
    for place in places:
        if place.source == "header" and place.name in vector["headers"]:
            value = vector["headers"][place.name]
            id = id.replace(value, signed.headers.get(place.name, value))
    return id


@pytest.fixture
async def client(serving: Serving) -> AsyncIterator[httpx.AsyncClient]:
    """One for a test: there are hundreds of requests."""
    async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
        yield client


async def post(client: httpx.AsyncClient, signed: Signed) -> httpx.Response:
    path = signed.url.removeprefix(PUBLIC_URL)
    return await client.post(path, content=signed.body, headers=signed.headers)


async def stored(project: Project) -> list[tuple[str, str, str]]:
    connection = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    try:
        rows = await connection.fetch("select route, event_id, type from gateway.processed_events")
    finally:
        await connection.close()
    return sorted((row["route"], without_time(row["event_id"]), row["type"]) for row in rows)


def without_time(event_id: str) -> str:
    """The digest of a body, which has the time of receipt behind it as an event id."""
    return re.sub(r"^([0-9a-f]{64})\.\d{8}T\d{12}Z$", r"\1", event_id)


async def test_what_each_sends_is_stored_once_and_acknowledged_as_it_wants(
    client: httpx.AsyncClient, module_project: Project
) -> None:
    expected = []
    for name in NAMES:
        vector, told = event_of(name), PROVIDERS[name].acknowledgement
        signed = sign(name, vector)
        expected += [
            (name, id_of(event, vector, signed), event["type"]) for event in vector["events"]
        ]
        for _ in range(2):  # the second is a duplicate
            answer = await post(client, signed)
            assert answer.status_code == told.status, (name, answer.text)
            assert told.body is None or answer.content == told.body, name
    assert await stored(module_project) == sorted(expected)


async def test_one_proof_is_good_for_one_event(
    client: httpx.AsyncClient, module_project: Project
) -> None:
    """Who has captured a request of a sender that does not sign its body cannot make more of it."""
    before = len(await stored(module_project))
    vector = event_of("mailgun")
    document = json.loads(vector["body"])
    document["signature"]["token"] = "of-this-test"  # the vendor's has come this very second
    vector["body"] = json.dumps(document)
    captured = json.loads(sign("mailgun", vector).body)
    captured["event-data"]["id"] = "the-real-one"
    assert (await client.post("/webhooks/mailgun", json=captured)).status_code == 200
    captured["event-data"].update(id="another", event="unsubscribed")
    forged = await client.post("/webhooks/mailgun", json=captured)
    assert (forged.status_code, forged.json()) == (403, {"error": "REPEATED_BODY"})

    vector = event_of("adyen")
    document = json.loads(vector["body"])
    item = document["notificationItems"][0]["NotificationRequestItem"]
    document["notificationItems"] = document["notificationItems"][:1]
    item["pspReference"], item["originalReference"] = "of-this-test", ""
    item["merchantReference"] = "order:7"
    vector["body"] = json.dumps(document)
    captured = json.loads(sign("adyen", vector).body)
    assert (await client.post("/webhooks/adyen", json=captured)).status_code == 200
    item = captured["notificationItems"][0]["NotificationRequestItem"]
    item["pspReference"] += ":"  # the same text, joined by colons
    item["originalReference"] = item["merchantAccountCode"]
    item["merchantAccountCode"], item["merchantReference"] = "order", "7"
    forged = await client.post("/webhooks/adyen", json=captured)
    assert (forged.status_code, forged.json()) == (403, {"error": "REPEATED_BODY"})
    assert len(await stored(module_project)) == before + 2


async def test_what_nobody_signed_gets_the_status_that_each_wants(
    client: httpx.AsyncClient,
) -> None:
    for name in NAMES:
        answer = await client.post(f"/webhooks/{name}", content=b"{}")
        assert answer.status_code == PROVIDERS[name].refusal_status, (name, answer.text)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("slack", "url-verification"),
        ("zoom", "url-validation"),
        ("discord", "ping"),
        ("line", "verify-button"),
        ("xero", "intent-good"),
        ("twitch", "challenge"),
    ],
)
async def test_a_challenge_is_answered_and_is_no_event(
    client: httpx.AsyncClient, module_project: Project, name: str, case: str
) -> None:
    before = await stored(module_project)
    vector = load(name, case)
    answer = await post(client, sign(name, vector))
    assert answer.status_code == vector["answer"]["status"]
    if "body" in vector["answer"]:
        assert answer.text == vector["answer"]["body"]
    assert await stored(module_project) == before


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("mailersend", "webhook-test"),
        ("woocommerce", "ping"),
        ("microsoft-graph", "validation"),
        ("slack", "ssl-check"),
    ],
)
async def test_a_handshake_without_a_secret_is_answered_and_is_no_event(
    client: httpx.AsyncClient, module_project: Project, name: str, case: str
) -> None:
    before = await stored(module_project)
    vector = load(name, case)
    path = vector["url"].removeprefix(PUBLIC_URL)
    headers, body = vector["headers"], vector["body"].encode()
    answer = await client.post(path, content=body, headers=headers)
    assert (answer.status_code, answer.text) == (200, vector["answer"]["body"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    if body:
        answer = await client.post(path, content=body + b"&a=b", headers=headers)
        assert answer.status_code == 403
    answer = await client.post(f"{path.partition('?')[0]}?a=b", content=body, headers=headers)
    assert answer.status_code == 403
    assert await stored(module_project) == before


async def test_a_page_in_the_validation_token_of_graph_is_not_echoed(
    client: httpx.AsyncClient,
) -> None:
    path = "/webhooks/microsoft-graph"
    page = {"validationToken": "<script>alert(1)</script>"}
    answer = await client.post(f"{path}?{urlencode(page)}")
    assert (answer.status_code, answer.json()) == (403, {"error": "BAD_SIGNATURE"})
    answer = await client.post(f"{path}?{urlencode({'validationToken': 'a b+c'})}")
    assert (answer.status_code, answer.text) == (200, "a b+c")
    assert answer.headers["content-type"].startswith("text/plain")


async def test_the_answer_to_a_ping_of_discord_has_a_content_type(
    client: httpx.AsyncClient,
) -> None:
    """Also without a body: Discord demands it."""
    answer = await post(client, sign("discord", load("discord", "ping")))
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "moment",
    ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:60Z", "x" * 99],
)
async def test_a_time_in_an_unsigned_header_is_no_reason_for_a_500(
    client: httpx.AsyncClient, module_project: Project, moment: str
) -> None:
    """The time of Shopify is information, and out of range it is left out."""
    vector = event_of("shopify")
    vector["body"] = json.dumps({"id": 1, "note": moment})
    signed = sign("shopify", vector)
    headers = {"x-shopify-triggered-at": moment, "x-shopify-webhook-id": f"at {moment}"}
    answer = await post(client, Signed({**signed.headers, **headers}, signed.body, signed.url))
    assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
    assert f"at {moment}" in {event_id for _, event_id, _ in await stored(module_project)}


async def test_a_wrong_signature_on_purpose_gets_401(client: httpx.AsyncClient) -> None:
    for name, vector in (
        ("xero", load("xero", "intent-bad")),
        ("discord", load("discord", "ping")),
    ):
        body = vector["body"].encode() + b" "
        answer = await client.post(f"/webhooks/{name}", content=body, headers=vector["headers"])
        assert answer.status_code == 401


async def test_a_subscription_to_meta_begins_with_its_token(client: httpx.AsyncClient) -> None:
    query = {"hub.mode": "subscribe", "hub.challenge": "1158201444"}
    for token, status, text in ((VERIFY_TOKEN, 200, "1158201444"), ("another", 403, "")):
        told = urlencode(query | {"hub.verify_token": token})
        answer = await client.get(f"/webhooks/meta?{told}")
        assert (answer.status_code, answer.text) == (status, text)


async def test_the_head_request_of_intercom_is_answered(client: httpx.AsyncClient) -> None:
    assert (await client.head("/webhooks/intercom")).status_code == 200
