"""Redacted fields from end to end: a real `serve`, the tables, and what the commands print."""

import hashlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

import asyncpg
import orjson

from gateway.providers import PROVIDERS
from tests.support.ledger import Reader
from tests.support.processes import STRIPE_SECRET, Project, github_request, stripe_request
from tests.support.waiting import until

ROUTES = """
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    redact: [data.object.extra]
  github:
    provider: github
    secrets: [env:GITHUB_WEBHOOK_SECRET]
    redact: [pusher.email, "commits.*.author"]
    redact_at: store
"""
WHO = "somebody@b.example"


def signed(document: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The document as Stripe would send it."""
    now = datetime.now(UTC)
    sent = PROVIDERS["stripe"].sign(
        orjson.dumps(document), secret=STRIPE_SECRET.encode(), id="", type="", now=now
    )
    return sent.body, sent.headers


async def test_a_field_is_stored_and_not_shown(project: Project, ledger: Reader) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        body, headers = stripe_request("evt_1", extra=WHO)
        assert (await serving.post(body, headers)).status_code == 200
        assert WHO not in serving.running.output
    assert await ledger.value("select body from gateway.events") == body
    cut = body.replace(WHO.encode(), b"[redacted]").decode()
    assert project.run("show", "evt_1", "--body").stdout == cut
    [event] = orjson.loads(project.run("show", "evt_1", "--json").stdout)
    assert (event["body"], event["redacted"]) == (cut, "data.object.extra")
    assert "without data.object.extra" in project.run("show", "evt_1").stdout
    project.run("show", "evt_1", "--save", "saved.json")
    saved = (project.directory / "saved.json").read_text()
    assert "[redacted]" in saved
    assert WHO not in saved
    project.write("config/routes.yaml", "routes: {")
    assert "not shown: routes.yaml cannot be read" in project.run("show", "evt_1").stdout
    refused = project.run("show", "evt_1", "--save", "other.json")
    assert (refused.returncode, "not shown" in refused.stderr) == (1, True)


async def test_a_field_is_not_even_stored(project: Project, ledger: Reader) -> None:
    """In forms, too, and in a body that is worked on beside the loop."""
    project.write("config/routes.yaml", ROUTES)
    project.run("migrate")
    commits = [{"id": n, "author": {"name": WHO}, "message": "x" * 400} for n in range(2000)]
    document = orjson.dumps({"ref": "main", "pusher": {"email": WHO}, "commits": commits})
    form = b"payload=" + quote_plus(document).encode()
    types = {"json": "application/json", "form": "application/x-www-form-urlencoded"}
    with project.serve() as serving:
        await serving.ready()
        for guid, body in (("json", document), ("form", form)):
            _, headers = github_request(guid, body=body)
            headers["content-type"] = types[guid]
            for verdict in ("accepted", "duplicate"):
                answer = await serving.post(body, headers, path="/webhooks/github")
                assert answer.json() == {"status": verdict, "event_id": guid}
            again = await serving.post(
                body, headers | {"x-github-delivery": f"{guid}-2"}, path="/webhooks/github"
            )
            assert again.json()["error"] == "REPEATED_BODY"
    rows = {
        row["event_id"]: row
        for row in await ledger.rows("select event_id, body, digest from gateway.events")
    }
    cut = document.replace(f'{{"name":"{WHO}"}}'.encode(), b'"[redacted]"')
    cut = cut.replace(f'"{WHO}"'.encode(), b'"[redacted]"')
    assert rows["json"]["body"] == cut
    assert rows["form"]["body"] == b"payload=" + quote_plus(cut).encode()
    assert rows["json"]["digest"] == hashlib.sha256(document).digest()
    assert rows["form"]["digest"] == hashlib.sha256(form).digest()


async def test_no_column_spool_or_log_has_what_may_not_be_stored(
    project: Project, ledger: Reader
) -> None:
    """Nor what quotes it: why a payload was refused."""
    project.write(
        "config/routes.yaml",
        ROUTES.replace(
            "redact: [data.object.extra]",
            "redact: [data.object.id, account]\n    redact_at: store\n    spool: always",
        ),
    )
    project.run("migrate")
    document = orjson.loads(stripe_request("evt_1")[0])
    document["data"]["object"]["id"] = document["account"] = WHO
    unreadable = document | {"id": "evt_3", "account": f"{WHO}\n"}
    blocker = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    with project.serve() as serving:
        await serving.ready()
        answer = await serving.post(*signed(document))
        assert answer.json() == {"status": "accepted", "event_id": "evt_1"}
        async with blocker.transaction():
            await blocker.execute("lock table gateway.processed_events in exclusive mode")
            answer = await serving.post(*signed(document | {"id": "evt_2"}))
            assert answer.json() == {"status": "accepted", "event_id": "evt_2"}
            files = [path.read_bytes() for path in project.directory.rglob("*.spool")]
            assert any(b"evt_2" in file for file in files)
            assert not any(WHO.encode() in file for file in files)
        answer = await serving.post(*signed(unreadable))
        assert answer.json() == {"error": "BAD_PAYLOAD"}
        await until(lambda: ledger.value("select count(*) = 1 from gateway.rejected"))
        await until(lambda: ledger.value("select count(*) = 2 from gateway.processed_events"))
        assert WHO not in serving.running.output
    await blocker.close()
    query = "select array_agg(t::text) from gateway.{} t"
    for table in ("processed_events", "payloads", "rejected"):
        assert WHO not in str(await ledger.value(query.format(table)))


async def test_no_ring_of_refused_requests_keeps_what_may_not_be_stored(
    project: Project, ledger: Reader
) -> None:
    """Nor what may have been for such a route, and came to a wrong path."""
    project.write("config/routes.yaml", ROUTES)
    project.run("migrate")
    body, headers = github_request("guid_1", body=orjson.dumps({"pusher": {"email": WHO}}))
    wrong = headers | {"x-hub-signature-256": "sha256=" + "0" * 64}
    with project.serve() as serving:
        await serving.ready()
        for path in ("/webhooks/github", "/webhooks/gihtub"):
            assert (await serving.post(body, wrong, path=path)).status_code in {403, 404}
        other, signed = stripe_request("evt_1", extra=WHO, secret="whsec_another")
        await serving.post(other, signed)
        await until(lambda: ledger.value("select count(*) = 3 from gateway.rejected"))
        assert WHO not in serving.running.output
    rows = await ledger.rows("select route, body, headers::text from gateway.rejected")
    kept = {row["route"]: row["body"] for row in rows}
    assert kept == {"github": None, "": None, "stripe": other}
    assert not [row for row in rows if WHO in row["headers"]]
    listed = orjson.loads(project.run("rejected", "--json").stdout)
    [shown] = [row for row in listed if row["route"] == "stripe"]
    said = project.run("rejected", "show", str(shown["id"]), "--body").stdout
    assert "[redacted]" in said
    assert WHO not in said
