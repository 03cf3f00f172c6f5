"""Senders of every kind through real processes: `up`, `send`, forgers, handshakes, batches."""

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.config.development import read_up
from tests.support.ports import free_port
from tests.support.processes import Project, Running
from tests.support.waiting import PATIENCE_S, until

ROUTES = """
routes:
  slack: {provider: slack, secrets: [env:SLACK_SECRET]}
  shop:
    provider: hmac
    secrets: [env:SHOP_SECRET]
    handlers: [handlers.shop]
    scheme:
      signature: {at: header.x-shop-signature, prefix: sha512=, encoding: base64}
      algorithm: sha512
      signed: "{method}|{url}|{header.x-shop-id}|{body}"
      id: header.x-shop-id
      type: "{json.topic}.{json.action}"
      ack: {status: 202, body: thanks}
  mail:
    provider: ecdsa
    secrets: [env:MAIL_KEY]
    scheme:
      signature: {at: header.x-mail-signature, encoding: base64}
      signed: "{timestamp}{body}"
      timestamp: {at: header.x-mail-time}
      batch: json
      id: json.event_id
      type: json.event
  chat:
    provider: ed25519
    secrets: [env:CHAT_KEY]
    scheme:
      signature: {at: header.x-signature-ed25519}
      signed: "{timestamp}{body}"
      timestamp: {at: header.x-signature-timestamp}
      type: json.event.type
      ack: {status: 204}
      refusal: 401
      handshake: [{when: {json.type: 0}, status: 204}]
  bot:
    provider: bearer
    secrets: [env:BOT_TOKEN]
    scheme:
      token: {at: header.x-bot-token}
      id: json.update_id
      type: json.*update_id
  till:
    provider: basic
    secrets: [env:TILL_LOGIN]
    scheme: {id: json.id, type: sale}
  pages:
    provider: hmac
    secrets: [env:PAGES_SECRET]
    verify_token: env:PAGES_TOKEN
    scheme:
      signature: {at: header.x-hub-signature-256, prefix: sha256=}
      type: json.object
      handshake:
        - method: GET
          when: {query.hub.mode: subscribe}
          token: query.hub.verify_token
          text: "{query.hub.challenge}"
"""
HANDLER = """
from gateway import Context, Event, handler

@handler("order.*")
async def take(event: Event, ctx: Context) -> None:
    assert event.payload["topic"] == "order"
"""
SENT = {
    "slack": "app_mention",
    "shop": "order.paid",
    "mail": "delivered",
    "chat": "APPLICATION_AUTHORIZED",
    "bot": "message",
    "till": "sale",
    "pages": "page",
}


@pytest.fixture
async def up(project: Project) -> AsyncIterator[Running]:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", HANDLER)
    project.environ["GATEWAY_PORT"] = str(free_port())
    with project.process("up") as running:
        await running.says("Ready.")
        yield running


def base(project: Project) -> str:
    found = read_up(project.directory / ".gateway")
    assert found is not None
    return found.url


def secrets(project: Project) -> dict[str, str]:
    told: dict[str, str] = json.loads((project.directory / ".gateway/secrets.json").read_text())
    return told


def events(project: Project, route: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(project.run("events", "--json").stdout)
    return [event for event in told if event["route"] == route]


async def test_every_kind_is_sent_verified_kept_and_forgeries_are_refused(
    project: Project, up: Running
) -> None:
    for route, type in SENT.items():
        result = project.run("send", route, type)
        assert result.returncode == 0, (route, result.stdout, result.stderr)
        [event] = events(project, route)
        assert event["type"] == type
    assert project.run("send", "shop", "order.paid").stdout.startswith("202 thanks")
    assert project.run("send", "chat", "X").stdout.startswith("204 ")
    await until(lambda: all(e["deliveries"] == {"done": 1} for e in events(project, "shop")))

    # What is not signed by the route's secret is nobody's.
    async with httpx.AsyncClient(base_url=base(project), timeout=PATIENCE_S) as client:
        for route in SENT:
            refused = await client.post(f"/webhooks/{route}", json={"type": "x", "update_id": 1})
            assert refused.status_code == (401 if route == "chat" else 403), route
            assert refused.json() == {"error": "BAD_SIGNATURE"}
    forged = project.run("send", "shop", "order.paid", "--secret", "env:FORGED", FORGED="guess")
    assert forged.returncode == 1
    assert forged.stdout.startswith('403 {"error":"BAD_SIGNATURE"}')

    # The token of a bearer is in no table and in no log.
    token = secrets(project)["env:BOT_TOKEN"]
    [event] = json.loads(
        project.run("show", events(project, "bot")[0]["event_id"], "--json").stdout
    )
    assert "x-bot-token" not in event["headers"]
    assert token not in up.output

    # Without an id, an event is known by its bytes, and by when it came.
    body = b'{"object":"page","entry":[]}'
    digest = hashlib.sha256(body).hexdigest()
    secret = secrets(project)["env:PAGES_SECRET"].encode()
    headers = {"x-hub-signature-256": "sha256=" + hmac.new(secret, body, "sha256").hexdigest()}
    async with httpx.AsyncClient(base_url=base(project), timeout=PATIENCE_S) as client:
        accepted = (await client.post("/webhooks/pages", content=body, headers=headers)).json()
        assert accepted["status"] == "accepted"
        assert accepted["event_id"].startswith(f"{digest}.")
        again = (await client.post("/webhooks/pages", content=body, headers=headers)).json()
        assert again == {**accepted, "status": "duplicate"}


async def test_handshakes_are_no_events_and_batches_are_several(
    project: Project, up: Running
) -> None:
    made_up = secrets(project)
    async with httpx.AsyncClient(base_url=base(project), timeout=PATIENCE_S) as client:
        body = b'{"type":"url_verification","challenge":"3eZbrw1a"}'
        moment = str(int(time.time()))
        signed = hmac.new(
            made_up["env:SLACK_SECRET"].encode(), b"v0:%b:%b" % (moment.encode(), body), "sha256"
        ).hexdigest()
        headers = {"x-slack-request-timestamp": moment, "x-slack-signature": f"v0={signed}"}
        answer = await client.post("/webhooks/slack", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"challenge": "3eZbrw1a"})
        stranger = await client.post("/webhooks/slack", content=body)
        assert stranger.status_code == 403, "also a handshake is verified first"

        query = {"hub.mode": "subscribe", "hub.challenge": "1158201444"}
        right = {**query, "hub.verify_token": made_up["env:PAGES_TOKEN"]}
        answer = await client.get("/webhooks/pages", params=right)
        assert (answer.status_code, answer.text) == (200, "1158201444")
        assert answer.headers["x-content-type-options"] == "nosniff", "an echo is no page"
        wrong = await client.get("/webhooks/pages", params={**query, "hub.verify_token": "guess"})
        assert (wrong.status_code, wrong.text) == (403, "")
        assert (await client.get("/webhooks/pages")).status_code == 405
        assert (await client.get("/webhooks/slack", params=right)).status_code == 405
    project.write("ping.json", '{"type": 0}')
    assert project.run("send", "chat", "PING", "--body", "ping.json").stdout.startswith("204 ")
    assert [event for route in SENT for event in events(project, route)] == []

    items = [{"event_id": f"m{n}", "event": "open", "n": 10**30} for n in range(3)]
    project.write("batch.json", json.dumps(items))
    assert project.run("send", "mail", "open", "--body", "batch.json").returncode == 0
    assert {event["event_id"] for event in events(project, "mail")} == {"m0", "m1", "m2"}
    again = project.run("send", "mail", "open", "--body", "batch.json")
    assert again.stdout.count('"duplicate"') == 3
    shown = project.run("show", "m1", "--body").stdout
    assert json.loads(shown)["n"] == 10**30, "the item's own bytes, no number rounded"

    project.write("batch.json", json.dumps([{"event_id": "m4", "event": "open"}, {"event": "x"}]))
    mixed = project.run("send", "mail", "open", "--body", "batch.json")
    assert mixed.stdout.startswith("200 ")
    assert mixed.stdout.count('"rejected"') == 1
    assert len(events(project, "mail")) == 4


def test_a_public_key_can_only_verify(project: Project) -> None:
    project.write("config/routes.yaml", ROUTES.replace("[handlers.shop]", "[]"))
    public = "8a8ec7d7c4b2cd4bd28bb3f8ff4e43c5f3c4a7c4c1d7f7b2d6a2a1b0c9d8e7f6"
    refused = project.run("send", "chat", "X", CHAT_KEY=public)
    assert refused.returncode == 1
    assert "found a public key, which can only verify" in refused.stderr
    assert "--secret env:NAME" in refused.stderr
    assert public not in refused.stderr


def test_what_proves_little_is_told(project: Project) -> None:
    project.write("config/routes.yaml", ROUTES.replace("[handlers.shop]", "[]"))
    listed = {row["route"]: row for row in json.loads(project.run("routes", "--json").stdout)}
    assert (listed["bot"]["integrity"], listed["slack"]["integrity"]) == ("none", "whole body")
    told = project.run("providers", "--json")
    assert {"slack", "stripe", "github"} <= {row["provider"] for row in json.loads(told.stdout)}
    assert "provider: slack" in project.run("providers", "slack").stdout
    assert "did you mean slack?" in project.run("providers", "slak").stderr
    assert "describe your own sender" in project.run("providers", "hmac").stderr
