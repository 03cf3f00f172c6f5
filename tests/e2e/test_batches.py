"""Batches: one item that cannot be read keeps no other out, and is not lost itself."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.support.forked import Death
from tests.support.ledger import Reader
from tests.support.processes import Project, Serving, locked
from tests.support.waiting import until

SECRET: Final = "a-secret-of-the-mail-sender"
KEY: Final = "5f" + "0123456789abcdef" * 3 + "00112233445566"
ROUTES: Final = """
schema: [handlers/schema.sql]
keys: [env:TEST_KEY]
routes:
  mail:
    provider: hmac
    secrets: [env:MAIL_SECRET]
    handlers: [handlers.effects]
    scheme:
      signature: {at: header.x-signature}
      signed: "{body}"
      batch: json
      id: json.id
      type: json.type
"""
NEVER_RETRIES: Final = ROUTES.replace("batch: json", "batch: json\n      retries: false")
CORRECTED: Final = ROUTES.replace("id: json.id", "id: [json.id, json.message]")
GOOD: Final = [{"id": f"m{n}", "type": "open"} for n in range(20)]
BAD: Final = {"message": "m-bad", "type": "open", "to": "somebody@b.example"}
BATCH: Final = [*GOOD[:7], BAD, *GOOD[7:]]
EVENTS: Final = "select array_agg(event_id order by event_id) from gateway.processed_events"


@pytest.fixture
def mail(project: Project) -> Project:
    project.environ |= {"MAIL_SECRET": SECRET, "TEST_KEY": KEY}
    project.write("config/routes.yaml", ROUTES)
    assert project.run("migrate").returncode == 0
    return project


async def post(serving: Serving, items: object, **headers: str) -> httpx.Response:
    body = json.dumps(items).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return await serving.post(body, {"x-signature": signature, **headers}, path="/webhooks/mail")


def statuses(answer: httpx.Response) -> dict[str, int]:
    assert answer.status_code == 200, answer.text
    found = [event["status"] for event in answer.json()["events"]]
    return {status: found.count(status) for status in found}


def release(project: Project, *arguments: str) -> list[dict[str, Any]]:
    released = project.run("rejected", "release", *arguments, "--yes", "--json")
    assert released.stdout, released.stderr
    found: list[dict[str, Any]] = json.loads(released.stdout)
    return found


async def effects(ledger: Reader, event_ids: Sequence[str]) -> None:
    """Wait until each of these took effect; once is what the caller asserts."""

    async def are_done() -> bool:
        query = "select count(distinct event_id) from public.effects where event_id = any ($1)"
        return bool(await ledger.value(query, list(event_ids)) == len(event_ids))

    await until(are_done)


async def test_the_good_items_are_accepted_and_the_bad_one_is_kept_and_released(
    mail: Project, ledger: Reader
) -> None:
    with mail.serve() as serving:
        await serving.ready()
        assert statuses(await post(serving, BATCH)) == {"accepted": 20, "rejected": 1}
        [kept] = await ledger.rows(
            "select id, code, cause, detail, body, verified_by from gateway.rejected"
        )
        assert (kept["code"], kept["cause"]) == ("BAD_PAYLOAD", "bad_item")
        assert "`id`: found nothing at {json.id}" in kept["detail"]
        assert (json.loads(kept["body"]), kept["verified_by"]) == (BAD, "env:MAIL_SECRET")
        assert statuses(await post(serving, BATCH)) == {"duplicate": 20, "rejected": 1}
        assert await ledger.value("select count(*) from gateway.rejected") == 1
    [status] = json.loads(mail.run("status", "--json").stdout)
    [told] = [found["text"] for found in status["attention"] if "accepted batches" in found["text"]]
    assert told.startswith("mail: 1 item of accepted batches could not be read")
    [refused] = release(mail, str(kept["id"]))
    assert (refused["outcome"], "found nothing at {json.id}" in refused["detail"]) == (
        "refused",
        True,
    )

    mail.write("config/routes.yaml", CORRECTED)
    [released] = release(mail, "--route", "mail", "--all")
    assert (released["outcome"], released["event_ids"]) == ("accepted", ["m-bad"])
    [again] = release(mail, str(kept["id"]))
    assert again["outcome"] == "already"
    with mail.serve() as serving, mail.process("worker"):
        await serving.ready()
        assert statuses(await post(serving, BATCH)) == {"duplicate": 21}
        await effects(ledger, ["m-bad", *(item["id"] for item in GOOD)])
    assert await ledger.value("select count(*) from public.effects") == 21
    audit = "select actor is not null, event_id from gateway.audit where action = 'release'"
    assert [tuple(row.values()) for row in await ledger.rows(audit)] == [(True, "m-bad")]
    [event] = await ledger.rows(
        "select verified_by, unverified from gateway.processed_events where event_id = 'm-bad'"
    )
    assert event == {"verified_by": "env:MAIL_SECRET", "unverified": False}


@pytest.mark.parametrize("step", ["claim.committed", "claim.answering"])
async def test_a_crash_before_the_answer_loses_and_doubles_nothing(
    mail: Project, ledger: Reader, step: str
) -> None:
    with mail.doomed_serve(Death(step)) as serving:
        await serving.ready()
        with pytest.raises(httpx.TransportError):
            await post(serving, BATCH)
    with mail.serve() as serving, mail.process("worker"):
        await serving.ready()
        found = statuses(await post(serving, BATCH))
        assert (found["rejected"], found.get("accepted", 0) + found["duplicate"]) == (1, 20)
        await effects(ledger, [item["id"] for item in GOOD])
    assert await ledger.value("select count(*) from public.effects") == 20
    assert await ledger.value("select count(*) from gateway.rejected") == 1


@pytest.mark.parametrize(
    "items", [{"items": BATCH}, "text", 7, [BAD, {"type": "open"}], [BAD]], ids=str
)
async def test_without_a_single_good_item_the_request_is_rejected(
    mail: Project, ledger: Reader, items: object
) -> None:
    with mail.serve() as serving:
        await serving.ready()
        answer = await post(serving, items)
        assert (answer.status_code, answer.json()) == (400, {"error": "BAD_PAYLOAD"})
        await until(lambda: ledger.value("select count(*) = 1 from gateway.rejected"))
    assert await ledger.value(EVENTS) is None
    kept = await ledger.row("select cause, verified_by from gateway.rejected")
    assert kept == {"cause": "bad_payload", "verified_by": None}


async def test_a_batch_is_not_acknowledged_before_its_bad_item_is_kept(
    mail: Project, ledger: Reader
) -> None:
    with mail.serve() as serving:
        await serving.ready()
        async with locked(mail, "rejected"):
            answer = await post(serving, BATCH)
            assert (answer.status_code, answer.json()) == (503, {"error": "UNAVAILABLE"})
        assert statuses(await post(serving, BATCH)) == {"duplicate": 20, "rejected": 1}
    assert await ledger.value("select count(*) from gateway.rejected") == 1


async def test_a_batch_is_refused_if_there_is_no_room_for_its_bad_items(
    mail: Project, ledger: Reader
) -> None:
    with mail.serve(GATEWAY_REJECTED_ROWS="1") as serving:
        await serving.ready()
        assert statuses(await post(serving, BATCH)) == {"accepted": 20, "rejected": 1}
        more = [*GOOD, {"message": "m-other", "type": "open"}]
        answer = await post(serving, more)
        assert (answer.status_code, answer.json()) == (400, {"error": "BAD_PAYLOAD"})
        assert statuses(await post(serving, BATCH)) == {"duplicate": 20, "rejected": 1}

        async def is_listed() -> bool:
            query = "select count(*) = 1 from gateway.rejected where verified_by is null"
            return bool(await ledger.value(query))

        await until(
            is_listed
        )  # the request as a whole, which gives way to no item and to which none does
    items = await ledger.rows("select body from gateway.rejected where verified_by is not null")
    assert [json.loads(item["body"]) for item in items] == [BAD]


async def test_the_batch_of_a_sender_that_never_retries_is_accepted_whatever_happens(
    mail: Project, ledger: Reader
) -> None:
    mail.write("config/routes.yaml", NEVER_RETRIES)
    with mail.serve() as serving:
        await serving.ready()
        async with locked(mail, "rejected"):
            assert statuses(await post(serving, BATCH)) == {"accepted": 20, "rejected": 1}
        await until(lambda: ledger.value("select count(*) = 1 from gateway.rejected"))
    kept = await ledger.row("select cause, body from gateway.rejected")
    assert (kept["cause"], json.loads(kept["body"])) == ("bad_item", BAD)


async def test_an_item_of_a_sender_that_never_retries_waits_until_it_is_written(
    mail: Project, ledger: Reader
) -> None:
    mail.write("config/routes.yaml", NEVER_RETRIES)
    with mail.serve() as serving:
        await serving.ready()
        await ledger.run("alter table gateway.rejected rename to away")
        assert statuses(await post(serving, BATCH)) == {"accepted": 20, "rejected": 1}
        await serving.running.says("refusals_not_noted")
        await ledger.run("alter table gateway.away rename to rejected")
        await until(lambda: ledger.value("select count(*) = 1 from gateway.rejected"))
    kept = await ledger.row("select verified_by, body from gateway.rejected")
    assert (kept["verified_by"], json.loads(kept["body"])) == ("env:MAIL_SECRET", BAD)


async def test_items_of_a_sender_that_never_retries_are_bounded(
    mail: Project, ledger: Reader
) -> None:
    mail.write("config/routes.yaml", NEVER_RETRIES)
    with mail.serve(GATEWAY_REJECTED_ROWS="2") as serving:
        await serving.ready()
        for n in range(6):
            bad = {"message": f"m-bad-{n}", "type": "open"}
            assert statuses(await post(serving, [GOOD[n], bad])) == {"accepted": 1, "rejected": 1}

            async def is_written(text: str = f"m-bad-{n}") -> bool:
                query = "select count(*) from gateway.rejected where position($1 in body) > 0"
                return bool(await ledger.value(query, text.encode()))

            await until(is_written)
    query = "select count(*) as rows, count(verified_by) as items from gateway.rejected"
    assert await ledger.row(query) == {"rows": 4, "items": 2}


@pytest.mark.parametrize(
    ("option", "is_plain"), [("encrypt: true", False), ("redact: [to]\n    redact_at: store", True)]
)
async def test_a_kept_item_is_as_confidential_as_its_route(
    mail: Project, ledger: Reader, option: str, is_plain: bool
) -> None:
    secret = BAD["to"]
    routes = ROUTES.replace("handlers:", f"{option}\n    handlers:")
    mail.write("config/routes.yaml", routes)
    with mail.serve() as serving:
        await serving.ready()
        for _ in range(2):
            assert statuses(await post(serving, BATCH))["rejected"] == 1
        assert secret not in serving.running.output
    [row] = await ledger.rows("select t::text, body from gateway.rejected t")
    assert secret not in row["t"]
    assert secret.encode() not in row["body"]
    assert (b"m-bad" in row["body"]) is is_plain
    mail.write("config/routes.yaml", routes.replace("id: json.id", "id: [json.id, json.message]"))
    [released] = release(mail, "--route", "mail", "--all")
    assert (released["outcome"], released["event_ids"]) == ("accepted", ["m-bad"])


async def test_a_released_batch_keeps_its_bad_item(mail: Project, ledger: Reader) -> None:
    """One that was rejected as a whole, because of a wrong secret."""
    with mail.serve(MAIL_SECRET="another-secret-of-the-sender") as serving:
        await serving.ready()
        assert (await post(serving, BATCH)).status_code == 403
        await until(lambda: ledger.value("select count(*) = 1 from gateway.rejected"))
    [released] = release(mail, "--route", "mail", "--all")
    assert (released["outcome"], len(released["event_ids"])) == ("accepted", 20)
    query = "select cause, verified_by from gateway.rejected where released_at is null"
    assert await ledger.rows(query) == [{"cause": "bad_item", "verified_by": "env:MAIL_SECRET"}]
    mail.write("config/routes.yaml", CORRECTED)
    [item] = release(mail, "--route", "mail", "--all")
    assert (item["outcome"], item["event_ids"]) == ("accepted", ["m-bad"])


async def test_a_repeated_item_keeps_no_other_out(mail: Project, ledger: Reader) -> None:
    guarded = ROUTES.replace("id: json.id", 'id: "{header.x-batch}.{json.id}"')
    mail.write("config/routes.yaml", guarded)
    first, second, third = GOOD[:3]
    with mail.serve() as serving:
        await serving.ready()
        assert statuses(await post(serving, [first, second], **{"x-batch": "a"})) == {"accepted": 2}
        mixed = await post(serving, [first, third], **{"x-batch": "b"})
        assert statuses(mixed) == {"rejected": 1, "accepted": 1}
        whole = await post(serving, [first, second], **{"x-batch": "c"})
        assert (whole.status_code, whole.json()) == (403, {"error": "REPEATED_BODY"})
    query = "select id, code from gateway.rejected where verified_by is not null"
    [kept] = await ledger.rows(query)
    assert kept["code"] == "REPEATED_BODY"
    [released] = release(mail, str(kept["id"]))
    assert (released["outcome"], released["event_ids"]) == ("accepted", ["b.m0"])


async def test_concurrent_copies_of_a_batch_keep_one_item(mail: Project, ledger: Reader) -> None:
    with mail.serve() as serving:
        await serving.ready()
        answers = await asyncio.gather(*(post(serving, BATCH) for _ in range(5)))
        assert [statuses(answer)["rejected"] for answer in answers] == [1] * 5
        assert await ledger.value("select count(*) from gateway.rejected") == 1
        other = [*GOOD, BAD | {"message": uuid4().hex}]
        assert statuses(await post(serving, other)) == {"duplicate": 20, "rejected": 1}
    assert await ledger.value("select count(*) from gateway.rejected") == 2
