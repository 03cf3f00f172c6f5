"""Redacted fields from end to end: a real `serve`, the tables, and what the commands print."""

import hashlib
from urllib.parse import quote_plus

import orjson

from tests.support.ledger import Reader
from tests.support.processes import Project, github_request, stripe_request
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
            assert again.json()["error"] == "REPLAYED"
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
