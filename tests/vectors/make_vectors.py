"""Makes the vectors whose signer or verifier is published on PyPI, and those that nobody else made.

See README.md for how to run it. `made_by` starts with "none" where the vendor publishes no code
that signs or verifies: such a case shows that we do what the vendor's page says, and no more.
"""

import base64
import hmac
import json
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

# Not imported as usual: they are no dependencies of the project, so that mypy would miss them.
SecurityGuard = import_module("mailgun.security").SecurityGuard
SigningKey = import_module("nacl.signing").SigningKey
SignatureVerifier = import_module("slack_sdk.signature").SignatureVerifier

HERE = Path(__file__).resolve().parent
AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
SECONDS = int(AT.timestamp())
MILLISECONDS = SECONDS * 1000
ISO = "2026-11-01T12:00:00Z"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}

Events = list[dict[str, str | None]] | None


def by(package: str, what: str) -> str:
    return f"PyPI {package} {version(package)} {what}"


def write(
    provider: str,
    case: str,
    *,
    made_by: str,
    secret: str,
    headers: dict[str, str],
    body: str,
    events: Events,
    **more: Any,
) -> None:
    whole = {
        "made_by": made_by,
        "secret": secret,
        "at": ISO,
        "method": "POST",
        "url": f"https://gateway.example.com/webhooks/{provider}",
        "headers": headers,
        "body": body,
        "events": events,
    } | more
    folder = HERE / provider
    folder.mkdir(exist_ok=True)
    text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    (folder / f"{case}.json").write_text(text, encoding="utf-8")


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def digest(secret: str, text: str, algorithm: str = "sha256") -> bytes:
    return hmac.digest(secret.encode(), text.encode(), algorithm)


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def one(id: str | None, type: str) -> Events:
    return [{"id": id, "type": type}]


def slack() -> None:
    made_by = by("slack_sdk", "SignatureVerifier.generate_signature")
    secret = "8f742231b10e8888abcd99yyyzzz85a5"

    def signed(body: str, at: int = SECONDS) -> dict[str, str]:
        signature = SignatureVerifier(secret).generate_signature(timestamp=str(at), body=body)
        assert signature is not None
        return {"x-slack-request-timestamp": str(at), "x-slack-signature": signature}

    # The slash command in Slack's own documentation, with the signature that stands there.
    published = (
        "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        "&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        "&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        "%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = signed(published, 1531420618)
    assert headers["x-slack-signature"] == (
        "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    )
    write(
        "slack",
        "published",
        made_by=f"{made_by}; equals the signature in Slack's documentation",
        secret=secret,
        at="2018-07-12T18:36:58Z",
        headers=FORM | headers,
        body=published,
        events=one(None, "/webhook-collect"),
    )
    body = compact(
        {
            "token": "ZZZZZZWSxiZZZ2yIvs3peJ",
            "team_id": "T123ABC456",
            "api_app_id": "A123ABC456",
            "event": {"type": "app_mention", "user": "U123ABC456", "text": "Hällo <@U0LAN0Z89>"},
            "type": "event_callback",
            "event_id": "Ev123ABC456",
            "event_time": SECONDS,
        }
    )
    write(
        "slack",
        "event",
        made_by=made_by,
        secret=secret,
        headers=JSON | signed(body),
        body=body,
        events=one("Ev123ABC456", "app_mention"),
    )
    challenge = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"
    body = compact(
        {"token": "Jhj5dZrVaK7ZwHHjRyZWjbDl", "challenge": challenge, "type": "url_verification"}
    )
    write(
        "slack",
        "url-verification",
        made_by=made_by,
        secret=secret,
        headers=JSON | signed(body),
        body=body,
        events=[],
        answer={"status": 200, "body": compact({"challenge": challenge})},
    )


def standard_webhooks_v1a() -> None:
    key = SigningKey(bytes(range(32)))
    id, body = (
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        compact({"type": "invoice.paid", "data": {"id": "in_1"}}),
    )
    signature = b64(key.sign(f"{id}.{SECONDS}.{body}".encode()).signature)
    write(
        "standard-webhooks",
        "v1a",
        made_by=f"none: no library signs v1a; made with {by('PyNaCl', 'SigningKey.sign')}",
        secret="whpk_" + b64(bytes(key.verify_key)),
        private_key="whsk_" + b64(bytes(key) + bytes(key.verify_key)),
        headers=JSON
        | {
            "webhook-id": id,
            "webhook-timestamp": str(SECONDS),
            "webhook-signature": f"v1a,{signature}",
        },
        body=body,
        events=one(id, "invoice.paid"),
    )


def mailgun() -> None:
    secret = "key-3ax6xnjp29jd6fds4gc373sgvjxteol0"
    token = "a8ce0edb2dd8301dee6c2405235584e45aa91d1e9f979f3de0"
    signature = digest(secret, f"{SECONDS}{token}").hex()
    with mock.patch("time.time", return_value=float(SECONDS)):
        assert SecurityGuard.verify_webhook(secret, token, str(SECONDS), signature)
        assert not SecurityGuard.verify_webhook(secret, token + "0", str(SECONDS), signature)
    accepted = by("mailgun", "SecurityGuard.verify_webhook")
    body = compact(
        {
            "signature": {"timestamp": str(SECONDS), "token": token, "signature": signature},
            "event-data": {
                "id": "CPgfbmQMTCKtHW6uIWtuVe",
                "event": "delivered",
                "timestamp": SECONDS + 0.5,
            },
        }
    )
    write(
        "mailgun",
        "event",
        made_by=f"signed with Python's hmac, accepted by {accepted}",
        secret=secret,
        headers=JSON,
        body=body,
        events=one("delivered.CPgfbmQMTCKtHW6uIWtuVe", "delivered"),
    )


def published() -> None:
    """Signatures that stand in the vendor's documentation, over bodies that are no events."""
    for number, (body, secret, signature) in enumerate(
        [
            (
                "hello world",
                "secret",
                "734cc62f32841568f45715aeb9f4d7891324e6d948e4c6c60c0621cdac48623a",
            ),
            (
                "lalala",
                "another-secret",
                "daa220016c8f29a8b214fbfc3671aeec2145cfb1e6790184ffb38b6d0425fa00",
            ),
            (
                "an-important-request-payload",
                "hunter123",
                "9be2242094a9a8c00c64306f382a7f9d691de910b4a266f67bd314ef18ac49fa",
            ),
        ],
        start=1,
    ):
        write(
            "circleci",
            f"published-{number}",
            made_by="published: https://circleci.com/docs/webhooks/#validate-webhooks",
            secret=secret,
            headers=JSON | {"circleci-signature": f"v1={signature}"},
            body=body,
            events=None,
        )
    signature = "a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"
    write(
        "jira",
        "published",
        made_by="published: https://developer.atlassian.com/cloud/jira/platform/webhooks/#secure-admin-webhooks",
        secret="It's a Secret to Everybody",
        headers=JSON | {"x-hub-signature": f"sha256={signature}"},
        body="Hello World!",
        events=None,
    )


NO_CODE = "none: {} publishes no code that signs or verifies; Python's hmac over what its page says"
NO_SIGNATURE = "none: {} signs nothing; the token is sent as it is"


def hex_signed() -> None:
    secret = "a-secret-of-the-receiver"
    cases: list[tuple[str, str, str, str, str, dict[str, str], object, Events]] = [
        (
            "lemon-squeezy",
            "Lemon Squeezy",
            "x-signature",
            "",
            "sha256",
            {"x-event-name": "order_created"},
            {"meta": {"event_name": "order_created"}, "data": {"type": "orders", "id": "1"}},
            one(None, "order_created"),
        ),
        (
            "sentry",
            "Sentry",
            "sentry-hook-signature",
            "",
            "sha256",
            {
                "request-id": "4d21bb5b2f7b4f6e9c2b1d7ac0a4d0f5",
                "sentry-hook-resource": "issue",
                "sentry-hook-timestamp": str(SECONDS),
            },
            {
                "action": "created",
                "data": {"issue": {"id": "1170820242"}},
                "installation": {"uuid": "a"},
            },
            one("4d21bb5b2f7b4f6e9c2b1d7ac0a4d0f5", "issue.created"),
        ),
        (
            "vercel",
            "Vercel",
            "x-vercel-signature",
            "",
            "sha1",
            {},
            {"id": "evt_1", "type": "deployment.created", "createdAt": MILLISECONDS, "payload": {}},
            one("evt_1", "deployment.created"),
        ),
        (
            "intercom",
            "Intercom",
            "x-hub-signature",
            "sha1=",
            "sha1",
            {},
            {
                "type": "notification_event",
                "app_id": "a86dr8yl",
                "topic": "conversation.user.created",
                "id": "notif_ccd8a4d0-f965-11e3-a367-c779cae3e1b3",
                "created_at": SECONDS,
            },
            one("notif_ccd8a4d0-f965-11e3-a367-c779cae3e1b3", "conversation.user.created"),
        ),
        (
            "bitbucket",
            "Bitbucket",
            "x-hub-signature",
            "sha256=",
            "sha256",
            {"x-event-key": "repo:push", "x-request-uuid": "2f6c1f6a-9a0e-4a1c-b5a0-3d2f8b1f6f0e"},
            {"push": {"changes": []}, "repository": {"full_name": "team/repo"}},
            one("2f6c1f6a-9a0e-4a1c-b5a0-3d2f8b1f6f0e", "repo:push"),
        ),
        (
            "jira",
            "Jira",
            "x-hub-signature",
            "sha256=",
            "sha256",
            {"x-atlassian-webhook-identifier": "7f1c9d8e-33b1-4b5e-9f0e-0f3f0e7e9b1a"},
            {
                "timestamp": MILLISECONDS,
                "webhookEvent": "jira:issue_created",
                "issue": {"id": "10001"},
            },
            one("7f1c9d8e-33b1-4b5e-9f0e-0f3f0e7e9b1a", "jira:issue_created"),
        ),
        (
            "circleci",
            "CircleCI",
            "circleci-signature",
            "v1=",
            "sha256",
            {"circleci-event-type": "workflow-completed"},
            {
                "id": "3888f21b-eaa7-38e3-8f3d-75a63bba8895",
                "type": "workflow-completed",
                "happened_at": ISO,
            },
            one("3888f21b-eaa7-38e3-8f3d-75a63bba8895", "workflow-completed"),
        ),
        (
            "meta",
            "Meta",
            "x-hub-signature-256",
            "sha256=",
            "sha256",
            {},
            {
                "object": "whatsapp_business_account",
                "entry": [
                    {"id": "102290129340398", "changes": [{"field": "messages", "value": {}}]}
                ],
            },
            one(None, "whatsapp_business_account"),
        ),
    ]
    for provider, name, header, prefix, algorithm, headers, document, events in cases:
        body = compact(document)
        signed = prefix + digest(secret, body, algorithm).hex()
        write(
            provider,
            "event",
            made_by=NO_CODE.format(name),
            secret=secret,
            headers=JSON | headers | {header: signed},
            body=body,
            events=events,
        )
    # What Intercom sends to try a new webhook.
    body = compact(
        {
            "type": "notification_event",
            "app_id": "a86dr8yl",
            "data": {"type": "notification_event_data", "item": {"type": "ping"}},
            "id": None,
            "topic": "ping",
            "created_at": SECONDS,
        }
    )
    write(
        "intercom",
        "ping",
        made_by=NO_CODE.format("Intercom"),
        secret=secret,
        headers=JSON | {"x-hub-signature": f"sha1={digest(secret, body, 'sha1').hex()}"},
        body=body,
        events=one(None, "ping"),
    )


def base64_signed() -> None:
    secret = "a-secret-of-the-receiver"
    body = compact(
        {
            "event_id": "LtWXD3crgy",
            "event_type": "form_response",
            "form_response": {"form_id": "lT4Z3j"},
        }
    )
    write(
        "typeform",
        "event",
        made_by=NO_CODE.format("Typeform"),
        secret=secret,
        headers=JSON | {"typeform-signature": f"sha256={b64(digest(secret, body))}"},
        body=body,
        events=one("LtWXD3crgy", "form_response"),
    )
    body = compact(
        {
            "event": "envelope-completed",
            "apiVersion": "v2.1",
            "generatedDateTime": ISO,
            "data": {"accountId": "a1", "envelopeId": "1234b567-89cd-4e0f-9012-abcdef345678"},
        }
    )
    for case, headers in {
        "event": {"x-docusign-signature-1": b64(digest(secret, body))},
        "two-signatures": {
            "x-docusign-signature-1": b64(digest("another", body)),
            "x-docusign-signature-2": b64(digest(secret, body)),
        },
    }.items():
        write(
            "docusign",
            case,
            made_by=NO_CODE.format("DocuSign"),
            secret=secret,
            headers=JSON | headers,
            body=body,
            events=one(
                f"1234b567-89cd-4e0f-9012-abcdef345678.envelope-completed..{ISO}",
                "envelope-completed",
            ),
        )
    envelope = "1234b567-89cd-4e0f-9012-abcdef345678"
    body = compact(
        {
            "event": "recipient-completed",
            "apiVersion": "v2.1",
            "generatedDateTime": ISO,
            "data": {"accountId": "a1", "envelopeId": envelope, "recipientId": "2"},
        }
    )
    write(
        "docusign",
        "recipient",
        made_by=NO_CODE.format("DocuSign"),
        secret=secret,
        headers=JSON | {"x-docusign-signature-1": b64(digest(secret, body))},
        body=body,
        events=one(f"{envelope}.recipient-completed.2.{ISO}", "recipient-completed"),
    )


def pagerduty_published() -> None:
    """The request with which PagerDuty tests its own Go library, there in one constant."""
    team = "https://acme.pagerduty.com"
    api = "https://api.pagerduty.com"

    def reference(kind: str, plural: str, id: str, summary: str) -> dict[str, str]:
        where = "account/incident_priorities" if kind == "priority" else f"{plural}/{id}"
        return {
            "html_url": f"{team}/{where}",
            "id": id,
            "self": f"{api}/{plural}/{id}",
            "summary": summary,
            "type": f"{kind}_reference",
        }

    incident = {
        "id": "PGR0VU2",
        "type": "incident",
        "self": f"{api}/incidents/PGR0VU2",
        "html_url": f"{team}/incidents/PGR0VU2",
        "number": 2,
        "status": "triggered",
        "title": "A little bump in the road",
        "service": reference("service", "services", "PF9KMXH", "API Service"),
        "assignees": [reference("user", "users", "PTUXL6G", "User 123")],
        "escalation_policy": reference(
            "escalation_policy", "escalation_policies", "PUS0KTE", "Default"
        ),
        "teams": [reference("team", "teams", "PFCVPS0", "Engineering")],
        "priority": reference("priority", "priorities", "PSO75BM", "P1"),
        "urgency": "high",
        "conference_bridge": {"conference_number": 1000, "conference_url": "https://example.com"},
        "resolve_reason": None,
    }
    event = {
        "id": "01BWDWL3NYY7LUFPZCC28QUCMK",
        "event_type": "incident.priority_updated",
        "resource_type": "incident",
        "occurred_at": "2021-04-26T17:36:27.458Z",
        "agent": reference("user", "users", "PLH1HKV", "Tenex Engineer"),
        "client": None,
        "data": incident,
    }
    secret = "lDQHScfUeXUKaQRNF+8XIiDKZ7XX3itBAYzwU0TARw8lJqRnkKl2iB1anSb0Z+IK"
    signature = "0c0b9495b893a39e70d1fea2fe11fbe0a825f88b9f67846f6cc07dd2bc5476cd"
    body = compact({"event": event})
    assert digest(secret, body).hex() == signature
    write(
        "pagerduty",
        "published",
        made_by="published: webhookv3/webhookv3_test.go of github.com/PagerDuty/go-pagerduty",
        secret=secret,
        headers=JSON | {"x-pagerduty-signature": f"v1={signature}"},
        body=body,
        events=one("01BWDWL3NYY7LUFPZCC28QUCMK", "incident.priority_updated"),
    )


def pagerduty() -> None:
    secret = "a-secret-of-the-receiver"
    body = compact(
        {
            "event": {
                "id": "01BWK2OQWPGBV9OWYAHRDMLPK2",
                "event_type": "incident.priority_updated",
                "resource_type": "incident",
                "occurred_at": ISO,
                "data": {"id": "PGR0VU2"},
            }
        }
    )
    good = f"v1={digest(secret, body).hex()}"
    other = f"v1={digest('another', body).hex()}"
    for case, header in {"event": good, "two-signatures": f"{other},{good}"}.items():
        write(
            "pagerduty",
            case,
            made_by=NO_CODE.format("PagerDuty (on npm or PyPI)"),
            secret=secret,
            headers=JSON | {"x-webhook-id": "5d0a2b9c", "x-pagerduty-signature": header},
            body=body,
            events=one("01BWK2OQWPGBV9OWYAHRDMLPK2", "incident.priority_updated"),
        )


def pagerduty_ping() -> None:
    """The test event of the console, as a program that receives it has recorded it."""
    secret = "a-secret-of-the-receiver"
    body = compact(
        {
            "event": {
                "id": "01FKZOXA868SHYEE4DVNWB5P9W",
                "event_type": "pagey.ping",
                "resource_type": "pagey",
                "occurred_at": "2025-04-07T03:00:55.532Z",
                "agent": {"id": "PVE0ZR9", "type": "user_reference"},
                "client": None,
                "data": {"message": "Hello from your friend Pagey!", "type": "ping"},
            }
        }
    )
    write(
        "pagerduty",
        "ping",
        made_by=NO_CODE.format("PagerDuty (on npm or PyPI)"),
        secret=secret,
        headers=JSON | {"x-pagerduty-signature": f"v1={digest(secret, body).hex()}"},
        body=body,
        events=one("01FKZOXA868SHYEE4DVNWB5P9W", "pagey.ping"),
    )


def xero() -> None:
    secret = (
        "OSd0eLlVIY9ZhViEqlDUh4+6n6M+Lo+eDaEJheJ6OCCgWwIz2D3JIAU6jPMipHRbgKTLz2uJ+xiACXGDBLrgdA=="
    )
    made_by = NO_CODE.format("Xero")
    happened = {
        "resourceUrl": "https://api.xero.com/api.xro/2.0/Contacts/717f2bfc-c6d4-41fd-b238-3f2f0c0cf777",
        "resourceId": "717f2bfc-c6d4-41fd-b238-3f2f0c0cf777",
        "eventDateUtc": "2026-11-01T11:59:58.000",
        "eventType": "Update",
        "eventCategory": "CONTACT",
        "tenantId": "c2cc9b6e-9458-4c7d-93cc-f02b81b0594f",
        "tenantType": "ORGANISATION",
    }
    body = compact(
        {
            "events": [happened],
            "lastEventSequence": 1,
            "firstEventSequence": 1,
            "entropy": "S0m3r4Nd0mt3xt",
        }
    )
    headers = JSON | {"x-xero-signature": b64(digest(secret, body))}
    id = ".".join(happened[key] for key in ("tenantId", "resourceId", "eventDateUtc"))
    write(
        "xero",
        "event",
        made_by=made_by,
        secret=secret,
        headers=headers,
        body=body,
        events=one(f"{id}.CONTACT.Update", "CONTACT.Update"),
        answer={"status": 200, "body": ""},
    )
    intent = compact(
        {"events": [], "firstEventSequence": 0, "lastEventSequence": 0, "entropy": "S0m3r4Nd0mt3xt"}
    )
    good, bad = b64(digest(secret, intent)), b64(digest("another", intent))
    for case, signature, status in [("intent-good", good, 200), ("intent-bad", bad, 401)]:
        write(
            "xero",
            case,
            made_by=made_by,
            secret=secret,
            headers=JSON | {"x-xero-signature": signature},
            body=intent,
            events=[],
            answer={"status": status, "body": ""} if status == 200 else {"status": status},
        )


def timed() -> None:
    secret = "a-secret-of-the-receiver"
    body = compact({"event": "invitee.created", "created_at": ISO, "payload": {"name": "Ada"}})
    signature = digest(secret, f"{SECONDS}.{body}").hex()
    write(
        "calendly",
        "event",
        made_by=NO_CODE.format("Calendly"),
        secret=secret,
        headers=JSON | {"calendly-webhook-signature": f"t={SECONDS},v1={signature}"},
        body=body,
        events=one(None, "invitee.created"),
    )
    body = compact(
        {
            "client_key": "bwo2m45353a6k85",
            "event": "video.publish.completed",
            "create_time": SECONDS,
        }
    )
    signature = digest(secret, f"{SECONDS}.{body}").hex()
    write(
        "tiktok",
        "event",
        made_by=NO_CODE.format("TikTok"),
        secret=secret,
        headers=JSON | {"tiktok-signature": f"t={SECONDS},s={signature}"},
        body=body,
        events=one(None, "video.publish.completed"),
    )


def twitch() -> None:
    secret, id, at = (
        "5f1a6e7cd2e7137ccf9e15b2f43fe63949eb84b1",
        "e76c6bd4-55c9-4987",
        "12:00:00.123456789Z",
    )
    subscription = {"id": "f1c2a387", "type": "channel.follow", "version": "2"}

    def case(name: str, kind: str, document: object, **more: Any) -> None:
        body = compact(document)
        signed = digest(secret, f"{id}2026-11-01T{at}{body}").hex()
        headers = {
            "twitch-eventsub-message-id": id,
            "twitch-eventsub-message-timestamp": f"2026-11-01T{at}",
            "twitch-eventsub-message-type": kind,
            "twitch-eventsub-message-signature": f"sha256={signed}",
        }
        made_by = NO_CODE.format("Twitch (but for a program in Go)")
        write(
            "twitch",
            name,
            made_by=made_by,
            secret=secret,
            headers=JSON | headers,
            body=body,
            **more,
        )

    event = {"subscription": subscription | {"status": "enabled"}, "event": {"user_id": "1337"}}
    case("event", "notification", event, events=one(id, "channel.follow"))
    pending = subscription | {"status": "webhook_callback_verification_pending"}
    case(
        "challenge",
        "webhook_callback_verification",
        {"challenge": "pogchamp-kappa-360noscope-vohiyo", "subscription": pending},
        events=[],
        answer={"status": 200, "body": "pogchamp-kappa-360noscope-vohiyo"},
    )


def tokens() -> None:
    secret = "a-secret-of-the-receiver"
    body = compact(
        {"object_kind": "push", "event_name": "push", "ref": "refs/heads/main", "project_id": 15}
    )
    write(
        "gitlab",
        "event",
        made_by=NO_SIGNATURE.format("GitLab's secret token"),
        secret=secret,
        headers=JSON
        | {
            "x-gitlab-event": "Push Hook",
            "x-gitlab-token": secret,
            "idempotency-key": "f5e5f430-f57b-4e6e-9fac-d9128cd7232f",
        },
        body=body,
        events=one("f5e5f430-f57b-4e6e-9fac-d9128cd7232f", "push"),
    )
    body = compact(
        {"update_id": 10000, "message": {"message_id": 1365, "date": SECONDS, "text": "/start"}}
    )
    write(
        "telegram",
        "event",
        made_by=NO_SIGNATURE.format("Telegram"),
        secret=secret,
        headers=JSON | {"x-telegram-bot-api-secret-token": secret},
        body=body,
        events=one("10000", "message"),
    )


def meta_handshake() -> None:
    query = {
        "hub.mode": "subscribe",
        "hub.challenge": "1158201444",
        "hub.verify_token": "meatyhamhock",
    }
    write(
        "meta",
        "subscribe",
        made_by="none: the request of Meta's page; nothing is signed",
        secret="meatyhamhock",
        method="GET",
        url=f"https://gateway.example.com/webhooks/meta?{urlencode(query)}",
        headers={},
        body="",
        events=[],
        answer={"status": 200, "body": "1158201444"},
    )


def open_handshakes() -> None:
    """Requests that are answered although the route's secret does not prove them."""
    test_key = "test_Am3L1GuOIc4blLUuHqAPxxwkZaJyEk8G"
    body = compact(
        {"type": "webhook.test", "message": "This is a ping test message", "created_at": ISO}
    )
    write(
        "mailersend",
        "webhook-test",
        made_by="signed with Python's hmac and the key of MailerSend's documentation",
        secret="mailersend-secret",
        headers=JSON | {"signature": digest(test_key, body).hex()},
        body=body,
        events=[],
        unverified=True,
        answer={"status": 200, "body": ""},
    )
    write(
        "slack",
        "ssl-check",
        made_by="published: https://github.com/slackapi/bolt-js/issues/1397; nothing is signed",
        secret="8f742231b10e8888abcd99yyyzzz85a5",
        headers=FORM | {"user-agent": "Slackbot 1.0 (+https://api.slack.com/robots)"},
        body="ssl_check=1&token=xxx",
        events=[],
        unverified=True,
        answer={"status": 200, "body": ""},
    )
    write(
        "woocommerce",
        "ping",
        made_by="none: the form of WC_Webhook::deliver_ping; nothing is signed",
        secret="a-secret-of-the-receiver",
        headers=FORM | {"user-agent": "WooCommerce/10.3.0 Hookshot (WordPress/6.8.3)"},
        body="webhook_id=143",
        events=[],
        unverified=True,
        answer={"status": 200, "body": ""},
    )
    token = "Validation: Testing client application reachability for subscription Request-Id: 8a4b"
    write(
        "microsoft-graph",
        "validation",
        made_by="none: the request of Microsoft's page; nothing is signed",
        secret="secretClientValue",
        url="https://gateway.example.com/webhooks/microsoft-graph?"
        + urlencode({"validationToken": token}),
        headers={"content-type": "text/plain; charset=utf-8"},
        body="",
        events=[],
        unverified=True,
        answer={"status": 200, "body": token},
    )


def woocommerce() -> None:
    secret = "a-secret-of-the-receiver"
    cases = {
        "event": ("order.updated", {"id": 727, "status": "processing", "total": "29.35"}),
        "deleted": ("order.deleted", {"id": 727}),
    }
    for case, (topic, document) in cases.items():
        resource, _, event = topic.partition(".")
        body = compact(document)
        signature = b64(digest(secret, body))
        delivery_id = "0f7d3c8a5c8e2d9b1f64ab2d0ce95a1e"
        headers = {
            "x-wc-webhook-source": "https://shop.example.com/",
            "x-wc-webhook-topic": topic,
            "x-wc-webhook-resource": resource,
            "x-wc-webhook-event": event,
            "x-wc-webhook-signature": signature,
            "x-wc-webhook-id": "143",
            "x-wc-webhook-delivery-id": delivery_id,
        }
        write(
            "woocommerce",
            case,
            made_by=NO_CODE.format("WooCommerce (but for the PHP of its shop)"),
            secret=secret,
            headers=JSON | headers,
            body=body,
            events=one(f"{delivery_id}.{signature}", topic),
        )


def microsoft_graph() -> None:
    """The notification of Microsoft's page, twice: each item shows the clientState."""
    tenant = "84bd8158-6d4d-4958-8b9f-9d6445542f95"
    subscription = "e3898f08-5cd0-4a6a-80fc-6addbfb73b7b"

    def item(id: str, change: str) -> dict[str, Any]:
        return {
            "id": id,
            "subscriptionId": subscription,
            "subscriptionExpirationDateTime": "2026-11-02T22:11:09.952Z",
            "clientState": "secretClientValue",
            "changeType": change,
            "resource": "users/622eaaff/messages/AAMkAGUwNjQ4ZjIxAAA=",
            "tenantId": tenant,
            "resourceData": {
                "@odata.type": "#Microsoft.Graph.Message",
                "@odata.etag": 'W/"CQAAABYAAADkrWGo7bouTKlsgTZMr9KwAAAUWRHf"',
                "id": "AAMkAGUwNjQ4ZjIxAAA=",
            },
        }

    body = compact({"value": [item("lsgTZMr9KwAAA", "created"), item("lsgTZMr9KwAAB", "updated")]})
    write(
        "microsoft-graph",
        "event",
        made_by=NO_SIGNATURE.format("Microsoft Graph"),
        secret="secretClientValue",
        headers=JSON,
        body=body,
        events=[
            {"id": f"{subscription}.lsgTZMr9KwAAA", "type": "created"},
            {"id": f"{subscription}.lsgTZMr9KwAAB", "type": "updated"},
        ],
    )


def main() -> None:
    for make in (
        slack,
        standard_webhooks_v1a,
        mailgun,
        published,
        hex_signed,
        base64_signed,
        pagerduty_published,
        pagerduty,
        pagerduty_ping,
        xero,
        timed,
        twitch,
        tokens,
        meta_handshake,
        open_handshakes,
        woocommerce,
        microsoft_graph,
    ):
        make()


if __name__ == "__main__":
    main()
