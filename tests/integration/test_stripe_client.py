"""`ctx.stripe` against Stripe's HTTP API: keys, accounts, errors, and what must not happen."""

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import respx
import stripe

from gateway import NotSent
from gateway.base.model import Outcome, RetryPolicy
from gateway.worker.effects import CallOutcome, classify, counting_requests
from gateway.worker.idempotency import keys_of_effect, make_stripe_key
from gateway.worker.policy import Failure, decide
from gateway.worker.stripe_client import make_stripe_client

API: Final = "https://api.stripe.com"
API_KEY: Final = "sk_test_not_to_be_seen"
CUSTOMER: Final = {"id": "cus_1", "object": "customer", "name": "Ada"}
THIN: Final = Path(__file__).parents[1] / "samples/stripe/thin/body"


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would write an id of this machine into the home directory."""
    monkeypatch.setattr(stripe, "enable_telemetry", False)


@pytest.fixture
def api() -> respx.MockRouter:
    router = respx.MockRouter(base_url=API)
    router.route(path="/v1/customers").respond(200, json=CUSTOMER)
    router.route(path__regex="/v1/customers/cus_.*").respond(200, json=CUSTOMER)
    return router


@pytest.fixture
async def http(api: respx.MockRouter) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(api.async_handler)) as client:
        yield client


@pytest.fixture
def client(http: httpx.AsyncClient) -> stripe.StripeClient:
    """The client of one run, with readable keys."""
    return make_stripe_client(API_KEY, http, name_as_key)


def name_as_key(name: str) -> str:
    return f"<{name}>"


def keys(api: respx.MockRouter) -> list[str | None]:
    return [call.request.headers.get("idempotency-key") for call in api.calls]


def sent(api: respx.MockRouter) -> list[tuple[str, str]]:
    return [(call.request.method, str(call.request.url)) for call in api.calls]


async def test_a_call_goes_out_through_the_shared_client_and_comes_back_typed(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    customer = await client.v1.customers.create_async({"name": "Ada", "metadata": {"a": "b"}})
    assert isinstance(customer, stripe.Customer)
    assert (customer.id, customer.name) == ("cus_1", "Ada")
    [call] = api.calls
    assert call.request.headers["authorization"] == f"Bearer {API_KEY}"
    assert call.request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert call.request.content == b"name=Ada&metadata[a]=b"


async def test_writes_are_keyed_by_path_and_number_and_reads_are_not(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    await client.v1.customers.create_async({"name": "Ada"})
    await client.v1.customers.update_async("cus_1", {"name": "Bob"})
    await client.v1.customers.retrieve_async("cus_1")
    await client.v1.customers.create_async({"name": "Cid"})
    await client.v1.customers.delete_async("cus_1")  # API v1 ignores a key of a DELETE
    assert keys(api) == [
        "<stripe:post /v1/customers:1>",
        "<stripe:post /v1/customers/cus_1:1>",
        None,
        "<stripe:post /v1/customers:2>",
        None,
    ]


async def test_in_once_per_thing_writes_are_counted_from_one(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    """Another event that makes the call again may have sent less before it."""
    await client.v1.customers.create_async({"name": "Ada"})
    for _ in range(2):  # a second call in one run, after the handler caught the error of the first
        with keys_of_effect("charge", "cs_1"):
            await client.v1.customers.create_async({"name": "Bob"})
    await client.v1.customers.create_async({"name": "Cid"})
    assert keys(api) == [f"<stripe:post /v1/customers:{n}>" for n in (1, 1, 1, 2)]


def test_keys_in_once_per_thing_are_of_the_thing_and_the_effect() -> None:
    def key_in(event_id: str, effect: str, thing: str | None) -> str:
        with keys_of_effect(effect, thing):
            return make_stripe_key("stripe", event_id, "handlers.pay", "stripe:post /v1/charges:1")

    assert key_in("evt_1", "charge", "cs_1") == key_in("evt_2", "charge", "cs_1")
    other = [("evt_1", "fee", "cs_1"), ("evt_1", "charge", "cs_2"), ("evt_1", "charge", None)]
    assert len({key_in("evt_1", "charge", "cs_1"), *(key_in(*of) for of in other)}) == 4


async def test_a_second_run_has_the_keys_of_the_first_whatever_it_asks_in_between(
    http: httpx.AsyncClient, api: respx.MockRouter
) -> None:
    async def run(*, is_rerun: bool) -> list[str | None]:
        before = len(api.calls)
        client = make_stripe_client(API_KEY, http, name_as_key)
        if is_rerun:
            await client.v1.customers.update_async("cus_2", {"name": "seen before"})
        await client.v1.customers.create_async({"name": "Ada"})
        await client.v1.customers.create_async({"name": "Bob"})
        return keys(api)[before:]

    first, again = await run(is_rerun=False), await run(is_rerun=True)
    assert again[1:] == first


async def test_writes_of_api_v2_are_keyed_too_deletes_included(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    destination = {"id": "ed_1", "object": "v2.core.event_destination"}
    api.route(path="/v2/core/event_destinations/ed_1").respond(200, json=destination)
    await client.v2.core.event_destinations.update_async("ed_1", {"name": "new"})
    await client.v2.core.event_destinations.delete_async("ed_1")
    assert keys(api) == [
        "<stripe:post /v2/core/event_destinations/ed_1:1>",
        "<stripe:delete /v2/core/event_destinations/ed_1:1>",
    ]


@pytest.mark.parametrize(
    "options",
    [{"idempotency_key": "mine"}, {"headers": {"idempotency-key": "mine"}}],
    ids=["option", "header"],
)
async def test_the_callers_own_key_wins_and_shifts_no_number(
    client: stripe.StripeClient, api: respx.MockRouter, options: Any
) -> None:
    await client.v1.customers.create_async({}, options)
    await client.v1.customers.create_async({})
    assert keys(api) == ["mine", "<stripe:post /v1/customers:1>"]


async def test_a_callers_key_that_looks_like_the_librarys_own_wins_too(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    key = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    await client.v1.customers.create_async({}, {"idempotency_key": key})
    assert keys(api) == [key]


async def test_connected_accounts_are_counted_apart(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    for account in ("acct_1", "acct_2"):
        await client.v1.customers.create_async({}, {"stripe_account": account})
    await client.v1.customers.create_async({}, {"stripe_context": "acct_3"})
    await client.with_stripe_context("acct_3").v1.customers.create_async({})
    assert keys(api) == [
        "<stripe:post /v1/customers acct_1:1>",
        "<stripe:post /v1/customers acct_2:1>",
        "<stripe:post /v1/customers acct_3:1>",
        "<stripe:post /v1/customers acct_3:2>",
    ]
    first, *_, last = (call.request.headers for call in api.calls)
    assert (first["stripe-account"], last["stripe-context"]) == ("acct_1", "acct_3")


async def test_what_was_returned_writes_under_stable_keys_too(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    customer = await client.v1.customers.retrieve_async("cus_1")
    await customer.refresh_async()
    api.post("/v1/customers/cus_1/sources").respond(200, json={"id": "card_1", "object": "card"})
    await client.raw_request_async("post", "/v1/customers/cus_1/sources", source="tok_visa")
    assert keys(api) == [None, None, "<stripe:post /v1/customers/cus_1/sources:1>"]


async def test_the_librarys_retries_share_one_key(
    http: httpx.AsyncClient, api: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0)
    route = api.post("/v1/refunds")
    route.side_effect = [
        httpx.ReadTimeout("late"),
        httpx.Response(503, json={"error": {}}),
        httpx.Response(200, json={"id": "re_1", "object": "refund"}),
    ]
    client = make_stripe_client(API_KEY, http, name_as_key)
    await client.v1.refunds.create_async({"charge": "ch_1"}, {"max_network_retries": 2})
    assert keys(api) == ["<stripe:post /v1/refunds:1>"] * 3


async def test_without_being_asked_nothing_is_tried_again(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    api.post("/v1/refunds").respond(500, json={"error": {"message": "ours"}})
    with pytest.raises(stripe.APIError, match="ours"):
        await client.v1.refunds.create_async({"charge": "ch_1"})
    assert len(api.calls) == 1


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (402, {"type": "card_error", "code": "card_declined"}, stripe.CardError),
        (400, {"type": "idempotency_error"}, stripe.IdempotencyError),
        (401, {}, stripe.AuthenticationError),
        (429, {"code": "rate_limit"}, stripe.RateLimitError),
    ],
)
async def test_stripes_errors_are_the_librarys(
    client: stripe.StripeClient,
    api: respx.MockRouter,
    status: int,
    error: dict[str, str],
    expected: type[stripe.StripeError],
) -> None:
    answer = {"error": {"message": "no", **error}}
    api.post("/v1/refunds").respond(status, json=answer, headers={"Request-Id": "req_1"})
    with pytest.raises(expected) as caught:
        await client.v1.refunds.create_async({"charge": "ch_1"})
    assert (caught.value.http_status, caught.value.request_id) == (status, "req_1")


@pytest.mark.parametrize(
    ("headers", "seconds"), [({"Retry-After": "7"}, 7), ({}, 5)], ids=["asked for", "not said"]
)
async def test_a_rate_limit_is_a_deferral(
    client: stripe.StripeClient, api: respx.MockRouter, headers: dict[str, str], seconds: int
) -> None:
    api.post("/v1/refunds").respond(429, json={"error": {"message": "slow"}}, headers=headers)
    with pytest.raises(stripe.RateLimitError) as caught:
        await client.v1.refunds.create_async({"charge": "ch_1"})
    failure = Failure(error=caught.value)
    decision = decide(failure, attempt=12, policy=RetryPolicy(), now=datetime.now(UTC))
    assert decision.outcome is Outcome.DEFERRED
    assert decision.delay == timedelta(seconds=seconds)


async def test_a_refused_connection_is_known_not_to_have_been_sent(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    api.post("/v1/refunds").side_effect = httpx.ConnectError("refused")
    with pytest.raises(stripe.APIConnectionError, match="ConnectError") as caught:
        await client.v1.refunds.create_async({"charge": "ch_1"})
    assert isinstance(caught.value, NotSent)


async def test_a_time_out_is_not_known_to_have_been_sent_or_not(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    api.post("/v1/refunds").side_effect = httpx.ReadTimeout("late")
    with pytest.raises(stripe.APIConnectionError, match="POST /v1/refunds: ReadTimeout") as caught:
        await client.v1.refunds.create_async({"charge": "ch_1"})
    assert not isinstance(caught.value, NotSent)


async def test_a_refused_retry_does_not_hide_that_the_first_try_was_sent(
    client: stripe.StripeClient, api: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0)
    api.post("/v1/refunds").side_effect = [httpx.ReadTimeout("late"), httpx.ConnectError("no")]
    with pytest.raises(stripe.APIConnectionError) as caught:
        await client.v1.refunds.create_async({"charge": "ch_1"}, {"max_network_retries": 1})
    assert not isinstance(caught.value, NotSent)


async def test_a_blocking_call_is_refused_and_its_async_twin_named(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    customer = await client.v1.customers.retrieve_async("cus_1")
    quiet = len(api.calls)
    for call, twin in (
        (lambda: client.v1.customers.create({}), "create_async"),
        (lambda: client.v1.quotes.pdf("qt_1"), "pdf_async"),
        (lambda: client.raw_request("get", "/v1/customers"), "raw_request_async"),
        (customer.refresh, "refresh_async"),
        (customer.delete, "delete_async"),
    ):
        with pytest.raises(RuntimeError, match=rf"would block .* await {twin}\(\) instead"):
            call()
    assert len(api.calls) == quiet


async def test_a_file_is_streamed(client: stripe.StripeClient, api: respx.MockRouter) -> None:
    api.route(host="files.stripe.com", path="/v1/quotes/qt_1/pdf").respond(200, content=b"%PDF")
    api.route(host="files.stripe.com", path="/v1/quotes/qt_2/pdf").respond(
        404, json={"error": {"message": "no such quote"}}
    )
    quote = await client.v1.quotes.pdf_async("qt_1")
    assert await quote.read_async() == b"%PDF"
    with pytest.raises(stripe.InvalidRequestError, match="no such quote"):
        await client.v1.quotes.pdf_async("qt_2")


async def test_closing_the_library_leaves_the_shared_client_open(
    client: stripe.StripeClient, http: httpx.AsyncClient
) -> None:
    transport = client._requestor._client
    assert transport is not None
    await transport.close_async()  # type: ignore[no-untyped-call]
    transport.close()  # type: ignore[no-untyped-call]
    assert not http.is_closed


async def test_pages_are_fetched_as_they_are_needed(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    def page(product: str, *, has_more: bool) -> dict[str, Any]:
        item = {"id": product, "object": "product"}
        return {"object": "list", "url": "/v1/products", "data": [item], "has_more": has_more}

    last, first = page("prod_2", has_more=False), page("prod_1", has_more=True)
    api.get("/v1/products", params={"starting_after": "prod_1"}).respond(200, json=last)
    api.get("/v1/products").respond(200, json=first)
    listed = await client.v1.products.list_async({"limit": 1})
    assert [each.id async for each in listed.auto_paging_iter()] == ["prod_1", "prod_2"]


async def test_a_thin_event_fetches_itself_and_its_object_without_the_librarys_own_notes(
    client: stripe.StripeClient, api: respx.MockRouter
) -> None:
    notification = client.parse_event_notification_without_verification(THIN.read_bytes())
    assert notification.type == "v1.billing.meter.error_report_triggered"
    event = {"object": "v2.core.event", "type": notification.type, "data": {"reason": {}}}
    api.get(f"/v2/core/events/{notification.id}").respond(200, json=event)
    api.get(notification.related_object.url).respond(
        200, json={"id": notification.related_object.id, "object": "billing.meter"}
    )
    assert (await notification.fetch_event_async()).type == notification.type
    assert (await notification.fetch_related_object_async()).object == "billing.meter"
    assert sent(api) == [
        ("GET", f"{API}/v2/core/events/{notification.id}"),  # and no ?usage[0]=pushed_event_pull
        ("GET", f"{API}{notification.related_object.url}"),
    ]


@pytest.mark.parametrize("key", ["sk_test_1\n", "sk test 1", "sk_test_\u00e9", ""])
async def test_a_key_that_cannot_be_one_is_refused_and_not_shown(
    http: httpx.AsyncClient, key: str
) -> None:
    with pytest.raises(ValueError, match="not shown") as caught:
        make_stripe_client(key, http, name_as_key)
    assert key.strip() == "" or key not in str(caught.value)


async def test_the_key_is_shown_nowhere(
    client: stripe.StripeClient, api: respx.MockRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    customer = await client.v1.customers.create_async({})
    api.post("/v1/refunds").side_effect = httpx.ReadTimeout("late")
    with pytest.raises(stripe.APIConnectionError) as caught:
        await client.v1.refunds.create_async({})
    shown = [repr(client), repr(client.v1), repr(customer), str(customer), repr(caught.value)]
    assert API_KEY not in "".join([*shown, caplog.text])
    assert "v1/customers" in caplog.text


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([401], CallOutcome.NOT_DONE),
        ([403], CallOutcome.NOT_DONE),
        ([404], CallOutcome.NOT_DONE),
        ([429], CallOutcome.NOT_DONE),
        ([402], CallOutcome.UNKNOWN),
        ([409], CallOutcome.UNKNOWN),
        ([500], CallOutcome.UNKNOWN),
        ([httpx.ReadTimeout("late")], CallOutcome.UNKNOWN),
        ([httpx.ConnectError("no")], CallOutcome.NOT_DONE),
        ([httpx.ConnectError("no"), httpx.ConnectError("no")], CallOutcome.NOT_DONE),
        ([httpx.ReadTimeout("late"), httpx.ConnectError("no")], CallOutcome.UNKNOWN),
        ([httpx.ReadTimeout("late"), 401], CallOutcome.UNKNOWN),
        ([500, 401], CallOutcome.UNKNOWN),
        ([500, httpx.ConnectError("no")], CallOutcome.UNKNOWN),
    ],
)
async def test_a_failed_call_inside_a_once_is_not_done_or_unknown(
    client: stripe.StripeClient,
    api: respx.MockRouter,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[int | Exception],
    expected: CallOutcome,
) -> None:
    """Also if the library itself tried again."""
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0)
    api.post("/v1/refunds").side_effect = [
        httpx.Response(a, json={"error": {"message": "no"}}) if isinstance(a, int) else a
        for a in answers
    ]
    with counting_requests() as made, pytest.raises(stripe.StripeError) as caught:
        await client.v1.refunds.create_async(
            {"charge": "ch_1"}, {"max_network_retries": len(answers) - 1}
        )
    assert classify(caught.value, made) is expected
