"""`ctx.stripe` in deliveries on a real Postgres, and the handlers of docs/typed.md as they are."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest
import respx
import stripe

from gateway import Context, Event
from gateway.base.secrets import Secret
from gateway.providers.samples import make_sample
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, subscribe, working

GUIDE: Final = Path(__file__).parents[2] / "docs/typed.md"
NOW: Final = datetime(2026, 11, 16, 12, tzinfo=UTC)
KEYS: Final = {"stripe": Secret(b"sk_test_1")}
TABLES: Final = """
create table public.invoices (
    id text primary key, status text, amount_paid bigint, version timestamptz
);
create table public.meters (id text primary key, name text, errors int, version timestamptz);
create table public.subscriptions (id text primary key, status text, version timestamptz);
create table public.refunds (dispute text primary key, refund text);
create table public.issues (id bigint primary key, title text, version timestamptz);
create table public.pull_requests (
    repository text, number int, title text, head text, version timestamptz,
    primary key (repository, number)
);
"""


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would write an id of this machine into the home directory."""
    monkeypatch.setattr(stripe, "enable_telemetry", False)


@pytest.fixture
def api() -> Iterator[respx.MockRouter]:
    with respx.mock(base_url="https://api.stripe.com", assert_all_called=False) as router:
        yield router


def keys(api: respx.MockRouter) -> list[str]:
    return [call.request.headers["idempotency-key"] for call in api.calls]


async def run(
    url: str,
    ledger: Reader,
    handler: Function,
    *,
    provider: str = "stripe",
    body: bytes = b"{}",
    api_keys: dict[str, Secret] = KEYS,
    status: str = "done",
) -> None:
    """One delivery of this body, until it has this status."""
    claim = make_claim("evt_1", body=body, occurred_at=NOW)
    await claim_all(url, [claim._replace(provider=provider)])

    async def is_settled() -> bool:
        return (await ledger.delivery())["status"] in {"done", "dead"}

    async with working(url, subscribe(handler), api_keys=api_keys):
        await until(is_settled)
    delivery = await ledger.delivery()
    assert delivery["status"] == status, delivery["error"]


async def refund(event: Event, ctx: Context) -> None:
    """A handler that fails after its first call to Stripe."""
    made = await ctx.stripe.v1.refunds.create_async({"charge": "ch_1"})
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, $2)", made.id, "it")
    if ctx.attempt == 1:
        raise ValueError("after the call, before the commit")


async def test_a_retry_and_a_replay_write_under_the_first_runs_key(
    database_url: str, ledger: Reader, api: respx.MockRouter
) -> None:
    api.post("/v1/refunds").respond(200, json={"id": "re_1", "object": "refund"})
    await run(database_url, ledger, refund)
    await ledger.replay((await ledger.delivery())["id"])
    async with working(database_url, subscribe(refund), api_keys=KEYS):
        await until(lambda: _count(api, 4))
    assert len(set(keys(api))) == 1
    assert keys(api)[0].startswith("gw_")


async def _count(api: respx.MockRouter, calls: int) -> bool:
    return len(api.calls) == calls


async def test_a_rate_limit_of_stripes_burns_no_attempt(
    database_url: str, ledger: Reader, api: respx.MockRouter
) -> None:
    limited = httpx.Response(429, json={"error": {"message": "slow down"}})
    made = httpx.Response(200, json={"id": "re_1", "object": "refund"})
    api.post("/v1/refunds").side_effect = [limited, limited, limited, limited, made, made]
    await run(database_url, ledger, refund)
    assert await ledger.outcomes() == [*["deferred"] * 4, "retry", "done"]
    assert (await ledger.delivery())["attempts"] == 2


async def test_without_a_key_the_error_says_where_to_put_it(
    database_url: str, ledger: Reader
) -> None:
    await run(database_url, ledger, refund, api_keys={}, status="dead")
    error = (await ledger.delivery())["error"]
    assert "ctx.stripe needs \"api_key: env:...\" on route 'stripe' in routes.yaml" in error


async def test_what_was_never_sent_is_tried_again_even_where_once_would_skip(
    database_url: str, ledger: Reader, api: respx.MockRouter
) -> None:
    refused = httpx.ConnectError("refused")
    made = httpx.Response(200, json={"id": "re_1", "object": "refund"})
    api.post("/v1/refunds").side_effect = [refused, made]
    results: list[Any] = []

    async def handler(event: Event, ctx: Context) -> None:
        async def refund_id() -> str:
            return (await ctx.stripe.v1.refunds.create_async({"charge": "ch_1"})).id

        results.append(await ctx.once("refund", refund_id, unknown="skip"))

    await run(database_url, ledger, handler)
    assert (results, len(api.calls)) == (["re_1"], 2)


def handlers_of_the_guide() -> dict[str, Function]:
    found: dict[str, Any] = {}
    text = GUIDE.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), found)  # noqa: S102 (our own docs)
        found |= {"__name__": "docs"}
    names = re.findall(r"^async def (\w+)", text, flags=re.MULTILINE)
    return {name: found[name] for name in names}


def answer(api: respx.MockRouter, payload: dict[str, Any]) -> None:
    """Everything that the guide's handlers ask for."""
    thing = payload.get("data", {}).get("object", {})
    fetched = {"reason": {"error_count": 3, "error_types": []}}
    meter = {"object": "billing.meter", "display_name": "calls"}
    api.get(path__startswith="/v2/core/events/").respond(200, json={**payload, "data": fetched})
    api.get(path__startswith="/v1/billing/meters/").respond(200, json={**meter, "id": "mtr_1"})
    api.get(path__startswith="/v1/subscriptions/").respond(200, json={**thing, "status": "paused"})
    api.post("/v1/refunds").respond(200, json={"id": "re_1", "object": "refund"})


GUIDED: Final = {
    "book_invoice": ("stripe", "invoice.paid", "select status from public.invoices", "paid"),
    "note_meter_errors": (
        "stripe",
        "v1.billing.meter.error_report_triggered",
        "select name || errors from public.meters",
        "calls3",
    ),
    "refresh_subscription": (
        "stripe",
        "customer.subscription.updated",
        "select status from public.subscriptions",
        "paused",
    ),
    "refund_small_dispute": (
        "stripe",
        "charge.dispute.created",
        "select refund from public.refunds",
        "re_1",
    ),
    "keep_title": ("github", "issues.opened", "select count(*)::text from public.issues", "1"),
    "note_pull_request": (
        "github",
        "pull_request.opened",
        "select count(*)::text from public.pull_requests where head is not null",
        "1",
    ),
}


@pytest.mark.parametrize("name", GUIDED)
async def test_a_handler_of_the_guide_works_as_it_stands(
    database_url: str, ledger: Reader, api: respx.MockRouter, name: str
) -> None:
    provider, type, query, expected = GUIDED[name]
    payload = orjson.loads(make_sample(provider, type, now=NOW).body)
    if name == "refund_small_dispute":
        payload["data"]["object"]["amount"] = 500
    answer(api, payload)
    await ledger.run(TABLES)
    handler = handlers_of_the_guide()[name]
    await run(database_url, ledger, handler, provider=provider, body=orjson.dumps(payload))
    assert await ledger.value(query) == expected
    assert await ledger.outcomes() == ["done"]


def test_every_handler_of_the_guide_is_run() -> None:
    assert handlers_of_the_guide().keys() == GUIDED.keys()
