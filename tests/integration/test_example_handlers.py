"""What people copy, on a real ledger: handlers that end alike however they run, and docs' SQL."""

import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import asyncpg
import orjson
import pytest

from gateway.config.registry import Registry, load_registry
from gateway.config.routes import load_config
from gateway.ledger.claims import Claim, Claimer
from gateway.ledger.deliveries import replay
from gateway.ledger.migrate import migrate, read_schema
from gateway.processes.work import Worker
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.samples import make_sample
from tests.support.ledger import Reader, claiming
from tests.support.waiting import until
from tests.support.workers import working

PROJECT: Final = Path(__file__).parents[2]
SCHEMA: Final = PROJECT / "handlers" / "schema.sql"
CONFIG: Final = PROJECT / "config" / "routes.yaml"
AT: Final = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
TABLES: Final = (
    "orders",
    "subscriptions",
    "invoices",
    "pushes",
    "branches",
    "pull_requests",
    "issues",
)

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Something that happened at a provider, with the fields that matter here."""

    provider: str
    type: str
    at: datetime
    fields: Fields
    received_at: datetime | None = None
    """When it is claimed; one second after the one before it, unless said."""
    like: str | None = None
    """The type whose sample serves, where there is none of its own."""


class Shop:
    """Claims events and runs their deliveries to the end, one after the other."""

    def __init__(self, registry: Registry, claimer: Claimer, worker: Worker, ledger: Reader):
        self._registry = registry
        self._claimer = claimer
        self._worker = worker
        self._ledger = ledger
        self._received_at = AT

    async def run(self, occurrences: Sequence[Occurrence]) -> None:
        for occurrence in occurrences:
            self._received_at += SECOND
            claim = _claim(self._registry, occurrence, occurrence.received_at or self._received_at)
            claimed = await self._claimer.claim(claim)
            assert claimed.delivery_ids, f"no handler takes {occurrence.type}"
            await self.finish(claimed.delivery_ids)

    async def finish(self, delivery_ids: Sequence[int]) -> None:
        self._worker.hint(delivery_ids)
        await until(self._none_unfinished)

    async def _none_unfinished(self) -> bool:
        statuses = await self._ledger.statuses()
        assert "dead" not in statuses, await self._ledger.rows("select * from gateway.attempts")
        return not statuses.keys() & {"pending", "running"}


def _claim(registry: Registry, occurrence: Occurrence, received_at: datetime) -> Claim:
    provider = PROVIDERS[occurrence.provider]
    like = occurrence.like or occurrence.type
    sample = make_sample(provider.name, like, now=occurrence.at)
    document = orjson.loads(sample.body)
    if "action" in document:
        document["action"] = occurrence.type.partition(".")[2]
    _object(document).update(occurrence.fields)
    body = orjson.dumps(document)
    headers, body, _ = provider.sign(
        body, secret=b"any", id=sample.id, type=occurrence.type, now=occurrence.at
    )
    envelope = provider.read(Incoming(headers, body))
    return Claim(
        route=provider.name,
        provider=provider.name,
        envelope=envelope,
        received_at=received_at,
        digest=hashlib.sha256(body).digest(),
        headers=headers,
        body=body,
        repeats=None,
        handlers=registry.for_event(provider.name, envelope.type),
    )


def _object(document: Fields) -> Fields:
    """What an event is about: Stripe's object, the pull request, the issue, or the push itself."""
    found: Fields = document.get("data", {}).get("object") or next(
        (document[key] for key in ("pull_request", "issue") if key in document), document
    )
    return found


def _stripe(type: str, at: datetime, **fields: Any) -> Occurrence:
    return Occurrence(provider="stripe", type=type, at=at, fields=fields)


def _github(type: str, at: datetime, **fields: Any) -> Occurrence:
    return Occurrence(provider="github", type=type, at=at, fields=fields)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The handlers of this project, as its own routes.yaml names them."""
    monkeypatch.chdir(PROJECT)
    return load_registry(load_config(CONFIG))


@pytest.fixture
async def shop_ledger(empty_database_url: str) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, read_schema([SCHEMA]))
    yield Reader(connection)
    await connection.close()


@pytest.fixture
async def shop(
    empty_database_url: str, registry: Registry, shop_ledger: Reader
) -> AsyncIterator[Shop]:
    async with (
        claiming(empty_database_url) as claimer,
        working(empty_database_url, *registry.subscriptions) as worker,
    ):
        yield Shop(registry, claimer, worker, shop_ledger)


async def test_schema_can_be_applied_again(empty_database_url: str, shop_ledger: Reader) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, read_schema([SCHEMA]))
    await connection.close()
    unversioned = await shop_ledger.rows(
        "select table_name from information_schema.tables t where table_schema = 'public'"
        " and not exists (select from information_schema.columns c"
        " where c.table_name = t.table_name and column_name = 'version' and is_nullable = 'NO')"
    )
    assert unversioned == []


async def test_an_order_ends_alike_in_any_order_of_events_of_one_second(
    shop: Shop, shop_ledger: Reader
) -> None:
    for number, order in enumerate(permutations(range(4))):
        intent = f"pi_{number}"
        paid = {"id": intent, "amount": 500, "metadata": {"order_id": "A1"}}
        events = [
            _stripe("payment_intent.payment_failed", AT, **paid),
            _stripe("payment_intent.succeeded", AT, **paid),
            _stripe("charge.refunded", AT, payment_intent=intent, amount_refunded=200),
            _stripe("charge.refunded", AT, payment_intent=intent, amount_refunded=500),
        ]
        await shop.run([events[index] for index in order])
    rows = await shop_ledger.rows(
        "select distinct status, amount, currency, failure, metadata ->> 'order_id' as order_id,"
        " refunded from orders"
    )
    assert rows == [
        {
            "status": "fulfilled",
            "amount": 500,
            "currency": "usd",
            "failure": None,
            "order_id": "A1",
            "refunded": 500,
        }
    ]


async def test_a_failed_payment_is_shown_until_a_later_one_succeeds(
    shop: Shop, shop_ledger: Reader
) -> None:
    await shop.run([_stripe("payment_intent.payment_failed", AT, id="pi_1")])
    order = await shop_ledger.row("select status, failure from orders")
    assert order == {"status": "failed", "failure": "card_declined"}
    await shop.run([_stripe("payment_intent.succeeded", AT + SECOND, id="pi_1")])
    await shop.run([_stripe("payment_intent.payment_failed", AT - SECOND, id="pi_1")])
    order = await shop_ledger.row("select status, failure from orders")
    assert order == {"status": "fulfilled", "failure": None}


async def test_a_refund_that_failed_and_was_made_again_shows_the_newer_amount(
    shop: Shop, shop_ledger: Reader
) -> None:
    first = _stripe("charge.refunded", AT, payment_intent="pi_1", amount_refunded=500)
    second = _stripe("charge.refunded", AT + SECOND, payment_intent="pi_1", amount_refunded=300)
    await shop.run([second, first])
    assert await shop_ledger.value("select refunded from orders") == 300


async def test_a_refund_without_a_payment_intent_is_no_order(
    shop: Shop, shop_ledger: Reader
) -> None:
    await shop.run([_stripe("charge.refunded", AT, payment_intent=None)])
    assert await shop_ledger.rows("select * from orders") == []


@pytest.mark.parametrize("last", [2, 3, 4])
async def test_a_subscription_ends_alike_in_any_order_of_events(
    shop: Shop, shop_ledger: Reader, last: int
) -> None:
    statuses = ["incomplete", "active", "past_due", "canceled"][:last]
    for number, order in enumerate(permutations(range(last))):
        subscription = f"sub_{number}"
        events = [
            _stripe("customer.subscription.created", AT, id=subscription, status="incomplete"),
            _stripe("customer.subscription.updated", AT, id=subscription, status="active"),
            _stripe(
                "customer.subscription.updated", AT + SECOND, id=subscription, status="past_due"
            ),
            _stripe("customer.subscription.deleted", AT + SECOND, id=subscription),
        ]
        await shop.run([events[index] for index in order])
    rows = await shop_ledger.rows("select distinct status from subscriptions")
    assert rows == [{"status": statuses[-1]}]


async def test_two_live_states_of_one_second_are_told_apart_by_their_claims(
    shop: Shop, shop_ledger: Reader
) -> None:
    for number, order in enumerate(permutations(range(2))):
        states = [
            Occurrence(
                provider="stripe",
                type="customer.subscription.updated",
                at=AT,
                fields={"id": f"sub_{number}", "cancel_at_period_end": flag, "status": "active"},
                received_at=AT + timedelta(milliseconds=received_ms),
            )
            for flag, received_ms in ((False, 300), (True, 400))
        ]
        await shop.run([states[index] for index in order])
    rows = await shop_ledger.rows("select distinct cancel_at_period_end from subscriptions")
    assert rows == [{"cancel_at_period_end": True}]


@pytest.mark.parametrize(
    ("type", "status"),
    [
        ("invoice.paid", "paid"),
        ("invoice.voided", "void"),
        ("invoice.marked_uncollectible", "uncollectible"),
    ],
)
async def test_an_invoice_ends_alike_in_any_order_of_events_of_one_second(
    shop: Shop, shop_ledger: Reader, type: str, status: str
) -> None:
    for number, order in enumerate(permutations(range(3))):
        invoice = f"in_{number}"
        events = [
            _stripe("invoice.created", AT, id=invoice, status="draft"),
            _stripe("invoice.finalized", AT, id=invoice, status="open"),
            _stripe(type, AT, id=invoice, status=status),
        ]
        await shop.run([events[index] for index in order])
    assert await shop_ledger.rows("select distinct status from invoices") == [{"status": status}]


async def test_a_failed_invoice_is_open_with_its_attempts(shop: Shop, shop_ledger: Reader) -> None:
    await shop.run([_stripe("invoice.payment_failed", AT, id="in_1")])
    row = await shop_ledger.row("select status, attempt_count, amount_paid from invoices")
    assert row == {"status": "open", "attempt_count": 1, "amount_paid": 0}


async def test_a_deleted_draft_stays_deleted(shop: Shop, shop_ledger: Reader) -> None:
    deleted = _stripe("invoice.deleted", AT, id="in_1", status="draft")
    await shop.run([deleted, _stripe("invoice.created", AT, id="in_1", status="draft")])
    assert await shop_ledger.value("select status from invoices") == "deleted"


async def test_a_forecast_is_no_invoice(shop: Shop, shop_ledger: Reader) -> None:
    await shop.run([_stripe("invoice.upcoming", AT, id=None)])
    assert await shop_ledger.rows("select * from invoices") == []


def _push(at: datetime, after: str, ref: str = "refs/heads/main", **fields: Any) -> Occurrence:
    return _github("push", at, after=after, ref=ref, **fields)


async def test_a_branch_has_the_head_of_its_newest_push(shop: Shop, shop_ledger: Reader) -> None:
    await shop.run([_push(AT + SECOND, "b" * 40), _push(AT, "a" * 40)])
    row = await shop_ledger.row("select name, repository, head from branches")
    assert row == {
        "name": "main",
        "repository": "northwind-labs/checkout-service",
        "head": "b" * 40,
    }
    assert await shop_ledger.value("select count(*) from pushes") == 2


async def test_a_deleted_branch_has_no_head(shop: Shop, shop_ledger: Reader) -> None:
    gone = _push(AT + SECOND, "0" * 40, deleted=True, head_commit=None, commits=[])
    await shop.run([gone, _push(AT, "a" * 40)])
    assert await shop_ledger.row("select name, head from branches") == {
        "name": "main",
        "head": None,
    }


async def test_a_tag_is_a_push_and_no_branch(shop: Shop, shop_ledger: Reader) -> None:
    await shop.run([_push(AT, "a" * 40, ref="refs/tags/v1")])
    assert await shop_ledger.value("select ref from pushes") == "refs/tags/v1"
    assert await shop_ledger.rows("select * from branches") == []


async def test_a_pull_request_ends_alike_in_any_order_of_events(
    shop: Shop, shop_ledger: Reader
) -> None:
    for number, order in enumerate(permutations(range(3)), start=1):
        events = [
            _github("pull_request.opened", AT, number=number),
            _github("pull_request.synchronize", AT + SECOND, number=number),
            _github("pull_request.closed", AT + 2 * SECOND, number=number, user=None),
        ]
        await shop.run([events[index] for index in order])
    rows = await shop_ledger.rows("select distinct state, author from pull_requests")
    assert rows == [{"state": "merged", "author": None}]


async def test_an_issue_ends_alike_in_any_order_of_events(shop: Shop, shop_ledger: Reader) -> None:
    for number, order in enumerate(permutations(range(3)), start=1):
        events = [
            Occurrence(
                provider="github",
                type=type,
                at=AT,
                fields={"number": number},
                received_at=AT + index * timedelta(milliseconds=100),
                like="issues.opened",
            )
            for index, type in enumerate(("issues.opened", "issues.closed", "issues.deleted"))
        ]
        events[1].fields["state"] = "closed"
        await shop.run([events[index] for index in order])
    assert await shop_ledger.rows("select distinct state from issues") == [{"state": "deleted"}]


async def test_a_second_run_of_everything_changes_nothing(
    shop: Shop, shop_ledger: Reader, empty_database_url: str
) -> None:
    later = AT + SECOND
    await shop.run(
        [
            _stripe("payment_intent.payment_failed", AT, id="pi_1"),
            _stripe("payment_intent.succeeded", later, id="pi_1"),
            _stripe("charge.refunded", later, payment_intent="pi_1"),
            _stripe("customer.subscription.created", AT, id="sub_1"),
            _stripe("customer.subscription.deleted", later, id="sub_1"),
            _stripe("invoice.payment_failed", AT, id="in_1"),
            _stripe("invoice.paid", later, id="in_1"),
            _push(AT, "a" * 40),
            _push(later, "b" * 40),
            _github("pull_request.opened", AT, number=1),
            _github("pull_request.closed", later, number=1),
            _github("issues.opened", AT, number=2),
            _github("issues.closed", later, number=2),
        ]
    )
    before = await _contents(shop_ledger)
    assert all(before.values())
    deliveries = await shop_ledger.rows("select id from gateway.deliveries order by id")
    connection = await asyncpg.connect(empty_database_url)
    for delivery in deliveries:
        await replay(connection, delivery["id"], actor="test", reason=None)
        await shop.finish([delivery["id"]])
    await connection.close()
    assert await _contents(shop_ledger) == before
    assert await shop_ledger.outcomes() == ["done"] * 2 * len(deliveries)


async def _contents(ledger: Reader) -> dict[str, list[Fields]]:
    return {
        table: await ledger.rows(f"select * from {table} order by 1, 2")  # noqa: S608 (TABLES)
        for table in TABLES
    }


def test_ping_is_kept_with_no_delivery(registry: Registry) -> None:
    assert registry.for_event("github", "ping") == ()


def test_every_example_handler_is_registered_under_its_name(registry: Registry) -> None:
    assert [item.handler for item in registry.subscriptions] == [
        "handlers.billing.fulfil_order",
        "handlers.billing.record_failed_payment",
        "handlers.billing.record_refund",
        "handlers.billing.follow_subscription",
        "handlers.billing.follow_invoice",
        "handlers.repos.follow_push",
        "handlers.repos.follow_pull_request",
        "handlers.repos.follow_issue",
    ]


def _queries() -> list[str]:
    text = (PROJECT / "docs" / "ledger.md").read_text(encoding="utf-8")
    return re.findall(r"^```sql\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("query", _queries(), ids=range(1, len(_queries()) + 1))
async def test_sql_of_the_docs_runs(
    shop: Shop, shop_ledger: Reader, registry: Registry, query: str
) -> None:
    await shop.run([_stripe("invoice.paid", AT, id="in_1"), _push(AT, "a" * 40)])
    await shop_ledger.rows(query)


def test_there_is_sql_to_run() -> None:
    assert len(_queries()) >= 9
