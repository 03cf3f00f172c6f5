"""From a refusal to its cause, to the release, with real processes."""

import hmac
import json
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import httpx

from gateway.config.development import SECRETS_FILE
from gateway.providers import PROVIDERS
from tests.support.ledger import Reader
from tests.support.processes import (
    STRIPE_SECRET,
    Project,
    Serving,
    github_request,
    stripe_request,
)
from tests.support.waiting import PATIENCE_S, until

TOKEN = "an-admin-token-of-the-suite"
RIGHT = "whsec_what_the_sender_has"


async def kept(ledger: Reader, count: int) -> None:
    async def are_there() -> bool:
        return bool(await ledger.value("select count(*) from gateway.rejected") == count)

    await until(are_there)


async def refuse(serving: Serving, body: bytes, headers: Mapping[str, str], path: str) -> int:
    return (await serving.post(body, headers, path=path)).status_code


async def test_a_refused_event_is_explained_fixed_and_released_once(
    project: Project, ledger: Reader
) -> None:
    """Wrong secret, 403; `rejected` names it; the secret is fixed; released, and the handler runs
    once; released again, nothing. What was forged stays out."""
    body, headers = stripe_request("evt_good", secret=RIGHT)
    forged_body, forged_headers = stripe_request("evt_forged", secret="whsec_forged")
    with project.serve() as serving:
        await serving.ready()
        assert await refuse(serving, body, headers, "/webhooks/stripe") == 403
        assert await refuse(serving, forged_body, forged_headers, "/webhooks/stripe") == 403
        assert await refuse(serving, *github_request("guid_1"), "/webhooks/stripe") == 403
        assert await refuse(serving, *github_request("guid_2"), "/webhook/github") == 404
        await kept(ledger, 4)
    listing = project.run("rejected")
    assert "signed with a secret that no route has" in listing.stdout
    assert "it is signed for route github" in listing.stdout
    assert "2 on stripe: BAD_SIGNATURE (unknown_secret), 1 sender, last " in listing.stdout
    rows = json.loads(project.run("rejected", "--json").stdout)
    assert {row["cause"] for row in rows} == {"unknown_secret", "wrong_url"}
    assert {row["route"] for row in rows} == {"stripe", ""}
    [lost] = [row["id"] for row in rows if row["code"] == "NOT_FOUND"]
    status = project.run("status").stdout
    assert "refused on stripe as BAD_SIGNATURE in the last hour" in status
    assert "looked into: it is signed for route github" in status

    fixed = {"STRIPE_WEBHOOK_SECRET": RIGHT}
    unfixed = project.run("rejected", "release", "--route", "stripe", "--all", "--yes")
    assert unfixed.returncode == 1
    assert "accepted" not in unfixed.stdout
    released = project.run("rejected", "release", "--route", "stripe", "--all", "--yes", **fixed)
    assert released.returncode == 1, "the forged ones stay refused"
    assert "1 accepted" in released.stdout
    assert "2 refused" in released.stdout
    moved = project.run("rejected", "release", str(lost), "--to-route", "github", "--yes")
    assert (moved.returncode, "accepted" in moved.stdout) == (0, True)

    with project.process("worker", **fixed):

        async def has_run() -> bool:
            return await ledger.statuses() == {"done": 2}

        await until(has_run)
        again = project.run("rejected", "release", "--all", "--yes", "--json", **fixed)
        assert {row["outcome"] for row in json.loads(again.stdout)} == {"refused"}
        assert await ledger.statuses() == {"done": 2}
    events = await ledger.rows("select event_id from public.effects order by event_id")
    assert [row["event_id"] for row in events] == ["evt_good", "guid_2"]
    shown = project.run("show", "evt_good").stdout
    assert "under env:STRIPE_WEBHOOK_SECRET" in shown


async def test_a_gateway_far_away_releases_with_its_own_secrets(
    project: Project, ledger: Reader
) -> None:
    """Over the API, where only `serve` has the secrets; the file was put right meanwhile."""
    secret = project.directory / "secret"
    secret.write_text("whsec_wrong")
    text = (project.directory / "config/routes.yaml").read_text()
    project.write("config/routes.yaml", text.replace("env:STRIPE_WEBHOOK_SECRET", f"file:{secret}"))
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
        await serving.ready()
        body, headers = stripe_request("evt_1")
        hidden = {**headers, "authorization": "Bearer s3cret-1", "cookie": "sid=s3cret-2"}
        assert await refuse(serving, body, hidden, "/webhooks/stripe") == 403
        await kept(ledger, 1)
        remote = {"GATEWAY_ADMIN_TOKEN": TOKEN, "GATEWAY_DATABASE_URL": ""}
        at = ("--url", serving.url)
        [row] = json.loads(project.run("rejected", "--json", *at, **remote).stdout)
        shown = project.run("rejected", "show", str(row["id"]), *at, **remote).stdout
        assert "authorization: (not kept)" in shown
        assert "s3cret" not in shown
        raw = project.run("rejected", "show", str(row["id"]), "--body", *at, **remote).stdout
        assert raw.encode() == body
        order = ("rejected", "release", "--all", "--yes", "--json", *at)
        assert json.loads(project.run(*order, **remote).stdout)[0]["outcome"] == "refused"
        secret.write_text(STRIPE_SECRET)
        assert json.loads(project.run(*order, **remote).stdout)[0]["outcome"] == "accepted"
        serving.running.process.send_signal(signal.SIGHUP)
        await serving.running.says("secrets_reloaded")
        sent = PROVIDERS["github"].sign(
            b"{}", secret=STRIPE_SECRET.encode(), id="guid_1", type="push", now=datetime.now(UTC)
        )
        assert await refuse(serving, sent.body, sent.headers, "/webhooks/github") == 403
        await kept(ledger, 2)
        cause = await ledger.value("select cause from gateway.rejected where route = 'github'")
        assert cause == "another_route", "it knows the new secrets"
        async with httpx.AsyncClient(
            headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
        ) as client:

            async def both_are_counted() -> bool:
                metrics = (await client.get(f"{serving.url}/metrics")).text
                return 'gateway_rejected_total{outcome="kept"} 2.0' in metrics

            await until(both_are_counted)
    assert await ledger.statuses() == {"pending": 1}


def unenforced(project: Project) -> None:
    text = (project.directory / "config/routes.yaml").read_text()
    project.write(
        "config/routes.yaml",
        text.replace("provider: stripe\n", "provider: stripe\n    enforce: false\n"),
    )


async def test_in_production_enforce_false_is_ignored_and_said_loudly(
    project: Project, ledger: Reader
) -> None:
    unenforced(project)
    assert "enforce: false, which is ignored" in project.run("check").stdout
    with project.serve() as serving:
        await serving.ready()
        await serving.running.says("enforce_false_ignored")
        body, headers = stripe_request("evt_1", secret="whsec_forged")
        assert await refuse(serving, body, headers, "/webhooks/stripe") == 403
        await kept(ledger, 1)
    assert await ledger.value("select count(*) from gateway.processed_events") == 0
    assert await ledger.value("select shadow from gateway.rejected") is False


async def test_in_development_enforce_false_accepts_and_marks(
    project: Project, ledger: Reader, tmp_path: Path
) -> None:
    unenforced(project)
    development = {"GATEWAY_DEV_SECRETS": str(tmp_path / SECRETS_FILE)}
    with project.serve(**development) as serving:
        await serving.ready()
        body, headers = stripe_request("evt_1", secret="whsec_forged")
        assert await refuse(serving, body, headers, "/webhooks/stripe") == 200
        body, headers = stripe_request("evt_2")
        assert await refuse(serving, body, headers, "/webhooks/stripe") == 200
        assert await refuse(serving, b"no event", {}, "/webhooks/stripe") == 400
        github = github_request("guid_1")
        forged = {**github[1], "x-hub-signature-256": "sha256=" + "0" * 64}
        assert await refuse(serving, github[0], forged, "/webhooks/github") == 403
        await kept(ledger, 3)
    found = await ledger.rows(
        "select event_id, unverified, verified_by from gateway.processed_events order by event_id"
    )
    assert found == [
        {"event_id": "evt_1", "unverified": True, "verified_by": None},
        {"event_id": "evt_2", "unverified": False, "verified_by": "env:STRIPE_WEBHOOK_SECRET"},
    ]
    assert "unverified" in project.run("events").stdout
    assert "its signature was wrong" in project.run("show", "evt_1").stdout
    assert await ledger.value("select count(*) from gateway.rejected where shadow") == 1


async def test_in_development_nothing_is_signed_for_a_stranger(
    project: Project, ledger: Reader, tmp_path: Path
) -> None:
    """The secret may be that of production, and what Zoom wants signed is any text: also that of
    an event."""
    zoom = "routes:\n  zoom: {provider: zoom, secrets: [env:ZOOM], enforce: false}\n"
    project.write("config/routes.yaml", zoom)
    text = 'v0:1:{"event":"meeting.ended"}'
    asked = {"event": "endpoint.url_validation", "payload": {"plainToken": text}}
    development = {"GATEWAY_DEV_SECRETS": str(tmp_path / SECRETS_FILE), "ZOOM": RIGHT}
    with project.serve(**development) as serving:
        await serving.ready()
        answer = await serving.post(json.dumps(asked).encode(), {}, path="/webhooks/zoom")
        assert (answer.status_code, answer.json()) == (403, {"error": "BAD_SIGNATURE"})
        event = json.dumps({"event": "meeting.ended"}).encode()
        assert await refuse(serving, event, {}, "/webhooks/zoom") == 200
    assert await ledger.value("select count(*) from gateway.processed_events") == 1


def test_what_does_not_go_together_is_said(project: Project) -> None:
    for command in (
        ["rejected", "release"],
        ["rejected", "release", "--all"],
        ["rejected", "release", "1", "--route", "stripe", "--yes"],
        ["rejected", "show"],
        ["rejected", "--yes"],
        ["rejected", "show", "x"],
    ):
        assert project.run(*command).returncode == 2, command
    missing = project.run("rejected", "show", "7")
    assert (missing.returncode, missing.stderr) == (1, "error: there is no refused request 7\n")
    assert "No refused request" in project.run("rejected").stdout
    assert json.loads(project.run("rejected", "--json").stdout) == []


BITBUCKET = "a-secret-of-bitbucket-0123456789"
FIELDS_IN_CREDENTIALS = """\
routes:
  bitbucket: {provider: bitbucket, secrets: [env:OTHER_SECRET], handlers: [handlers.effects]}
  own:
    provider: hmac
    secrets: [env:OTHER_SECRET]
    handlers: [handlers.effects]
    scheme:
      signature: {at: header.x-auth-signature}
      id: json.id
      type: query.key
"""


async def test_fields_that_are_named_like_credentials_are_not_released_as_not_kept(
    project: Project, ledger: Reader
) -> None:
    """A header that a scheme reads is kept. A query parameter is not, and says so."""
    project.write("config/routes.yaml", FIELDS_IN_CREDENTIALS)
    body = b'{"id": "1", "repository": {}}'
    signature = hmac.new(BITBUCKET.encode(), body, "sha256").hexdigest()
    bitbucket = {"x-hub-signature": f"sha256={signature}", "x-event-key": "repo:push"}
    with project.serve(OTHER_SECRET="another-secret-0123456789-0123456") as serving:
        await serving.ready()
        assert await refuse(serving, body, bitbucket, "/webhooks/bitbucket") == 403
        own = {"x-auth-signature": signature}
        assert await refuse(serving, body, own, "/webhooks/own?key=order.paid") == 403
        await kept(ledger, 2)
    release = ("rejected", "release", "--all", "--yes")
    released = project.run(*release, OTHER_SECRET=BITBUCKET)
    assert "1 accepted, 1 refused" in " ".join(released.stdout.split()), released.stdout
    assert "its type stood in a header or a query parameter that was left out" in released.stdout
    events = await ledger.rows("select route, type from gateway.processed_events")
    assert [(event["route"], event["type"]) for event in events] == [("bitbucket", "repo:push")]
