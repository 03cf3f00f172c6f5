"""Reconcile on a real ledger, with the providers' APIs played: pages, limits, errors, nonsense."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest
import respx

from gateway.base.errors import CommandFailed, ConfigInvalid
from gateway.base.model import Rate, RepeatPolicy, Retention
from gateway.base.secrets import SecretRef
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.config.routes.reconcile import GITHUB_API, STRIPE_API, Reconcile
from gateway.ledger.connection import connect, open_pool
from gateway.ledger.encryption import OPEN
from gateway.ledger.reconciliations import find_reconciliation, last_runs
from gateway.ledger.rejected import Refusal, note_refusals
from gateway.ledger.walk import delete_all
from gateway.operations.reconcile.recovery import MOST_ASKS
from gateway.operations.reconcile.runs import ReconcileContext, begin, carry_out, resume
from gateway.operations.reconcile.schedule import Schedule
from gateway.providers import PROVIDERS
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.pgbouncer import needs_own_session
from tests.support.provider_apis import (
    HOOK,
    FakeGithub,
    FakeStripe,
    Sent,
    deliveries,
    stripe_event,
)
from tests.support.waiting import PATIENCE_S
from tests.support.workers import count, make_config, make_route, subscribe

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
REFUSE = RepeatPolicy.REFUSE
NOW = datetime.now(UTC).replace(microsecond=0)
ENVIRON = {"STRIPE_API_KEY": FakeStripe().key, "GITHUB_TOKEN": FakeGithub().token}

Handle = Callable[[httpx.Request], Awaitable[httpx.Response]]


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the test, and not of the import: a whole suite may lie between them."""
    monkeypatch.setitem(globals(), "NOW", datetime.now(UTC).replace(microsecond=0))


def stripe_route(name: str = "stripe", **changes: Any) -> Route:
    return make_route(name, api_key=SecretRef(kind="env", target="STRIPE_API_KEY"), **changes)


GITHUB_RECONCILE = Reconcile(
    api_url=GITHUB_API,
    hook=HOOK,
    token=SecretRef(kind="env", target="GITHUB_TOKEN"),
    rate=Rate(count=10_000, period=timedelta(seconds=1)),
)


def github_route(wait: timedelta = timedelta(seconds=10), **changes: Any) -> Route:
    reconcile = replace(GITHUB_RECONCILE, wait=wait)
    given = {"provider": PROVIDERS["github"], "tolerance": None, "reconcile": reconcile}
    return make_route("github", **(given | changes))


class Office:
    """What a test orders reconciliations with."""

    def __init__(self, url: str, *routes: Route) -> None:
        self.rests: list[float] = []
        self.woken: list[int] = []
        self.means = ReconcileContext(
            encryption=OPEN,
            url=url,
            config=make_config(*routes),
            registry=Registry([subscribe(count, route=r.name) for r in routes]),
            wake=self._wake,
            environ=ENVIRON,
            rest=self._rest,
        )

    async def _rest(self, seconds: float) -> None:
        self.rests.append(seconds)

    async def _wake(self, delivery_ids: Sequence[int]) -> None:
        self.woken.extend(delivery_ids)

    async def begin(self, route: str, since: timedelta | None = HOUR, **more: Any) -> int:
        connection = await connect(self.means.url, name="test")
        asked = None if since is None else datetime.now(UTC) - since
        try:
            return await begin(
                connection, self.means, route, **({"actor": "ann", "since": asked} | more)
            )
        finally:
            await connection.close()

    async def reconcile(
        self, route: str, since: timedelta | None = HOUR, **more: Any
    ) -> dict[str, Any]:
        return await carry_out(self.means, await self.begin(route, since, **more))

    async def resume(self, route: str) -> dict[str, Any]:
        connection = await connect(self.means.url, name="test")
        try:
            return await carry_out(self.means, await resume(connection, self.means, route))
        finally:
            await connection.close()


def figures(row: dict[str, Any]) -> dict[str, int]:
    names = ("listed", "missing", "recovered", "outstanding", "unrecoverable")
    return {name: row[name] for name in names}


@pytest.fixture
def play() -> Any:
    """Answers a provider's URL with a fake, or from then on with a function."""
    handlers: dict[str, Handle] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        return await handlers[f"{request.url.scheme}://{request.url.host}"](request)

    with respx.mock(assert_all_called=False) as router:
        router.route().mock(side_effect=answer)
        yield handlers.__setitem__


@pytest.fixture
def stripe(play: Any) -> FakeStripe:
    fake = FakeStripe()
    play(STRIPE_API, fake.answer)
    return fake


@pytest.fixture
async def github(play: Any, database_url: str) -> AsyncIterator[FakeGithub]:
    """Its redeliveries arrive, claimed as the endpoint would."""
    fake = FakeGithub()

    async def deliver(sent: Sent) -> int:
        await arrive(database_url, sent.guid)
        return 200

    fake.deliver = deliver
    play(GITHUB_API, fake.answer)
    yield fake
    await asyncio.gather(*fake.tasks)


async def arrive(url: str, *guids: str) -> None:
    """Deliveries of GitHub's come in by the webhook."""
    claims = [
        make_claim(
            guid, route="github", type="push", body=guid.encode(), repeats=RepeatPolicy.REFUSE
        )
        for guid in guids
    ]
    await claim_all(url, claims)


async def ids(ledger: Reader, route: str) -> list[str]:
    """The events of a route, in the order in which they were claimed."""
    rows = await ledger.rows(
        "select event_id from gateway.deliveries where route = $1 order by id", route
    )
    return [row["event_id"] for row in rows]


async def test_what_stripe_sent_and_the_ledger_has_not_is_claimed_in_order(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    stripe.page = 10
    stripe.events = [stripe_event(n, NOW - 50 * MINUTE + n * MINUTE) for n in range(45)]
    stripe.events.append(stripe_event(900, NOW - 3 * HOUR))
    known = [make_claim(f"evt_{n:05}") for n in range(0, 45, 2)]
    await claim_all(database_url, known)
    office = Office(database_url, stripe_route())
    row = await office.reconcile("stripe")
    assert figures(row) == {
        "listed": 45, "missing": 22, "recovered": 22, "outstanding": 0, "unrecoverable": 0,
    }  # fmt: skip
    assert (row["status"], row["error"]) == ("done", None)
    assert (await ids(ledger, "stripe"))[23:] == [f"evt_{n:05}" for n in range(1, 45, 2)]
    assert len(office.woken) == 22
    event = await ledger.row("select * from gateway.processed_events where event_id = 'evt_00001'")
    assert (event["reconciled"], event["provider"], event["type"]) == (
        True,
        "stripe",
        "invoice.paid",
    )
    assert event["occurred_at"] == NOW - 49 * MINUTE
    again = await office.reconcile("stripe")
    assert (again["listed"], again["missing"]) == (45, 0)


@pytest.mark.parametrize("count", [0, 1, 10, 25])
async def test_an_account_without_an_older_event_is_listed_whole(
    count: int, stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    stripe.page = 10
    stripe.events = [stripe_event(n, NOW - 30 * MINUTE + n * MINUTE) for n in range(count)]
    row = await Office(database_url, stripe_route()).reconcile("stripe")
    assert (row["status"], row["listed"], row["recovered"]) == ("done", count, count)
    assert await ids(ledger, "stripe") == [f"evt_{n:05}" for n in range(count)]


async def test_only_what_the_route_wants_is_fetched(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    at = NOW - 30 * MINUTE
    stripe.events = [
        stripe_event(1, at),
        stripe_event(2, at, type="charge.refunded"),
        stripe_event(3, at, livemode=True),
        stripe_event(4, datetime.now(UTC)),  # on its way
    ]
    route = stripe_route(types=("invoice.*",), livemode=False)
    row = await Office(database_url, route).reconcile("stripe")
    assert await ids(ledger, "stripe") == ["evt_00001"]
    assert (row["listed"], row["missing"]) == (3, 1)
    assert all("types[]" not in r.url.params for r in stripe.requests)


async def test_names_without_globs_are_left_to_stripe(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    stripe.events = [
        stripe_event(0, NOW - 2 * HOUR, type="other"),
        stripe_event(1, NOW - 30 * MINUTE),
        stripe_event(2, NOW - 30 * MINUTE, type="other"),
    ]
    route = stripe_route(types=("invoice.paid", "charge.refunded"))
    row = await Office(database_url, route).reconcile("stripe")
    assert (row["listed"], row["recovered"]) == (1, 1)


async def test_types_that_no_handler_takes_are_left_alone_where_the_route_names_none(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    """A listing has all of the account's events, also those that the endpoint is never sent."""
    stripe.events = [stripe_event(1, NOW - MINUTE * 9), stripe_event(2, NOW - MINUTE * 9, type="x")]
    office = Office(database_url, stripe_route())
    office.means = ReconcileContext(
        encryption=OPEN,
        url=database_url,
        config=office.means.config,
        registry=Registry([subscribe(count), subscribe(count, name="x")][:0]),
        wake=office.means.wake,
        environ=ENVIRON,
    )
    row = await office.reconcile("stripe")
    assert (row["listed"], row["missing"]) == (2, 0)


async def test_connected_accounts_are_asked_for_one_by_one(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    at = NOW - 30 * MINUTE
    stripe.events = [
        stripe_event(1, at),
        stripe_event(2, at, _account="acct_1"),
        stripe_event(3, at, _account="acct_2", account="acct_2"),
    ]
    reconcile = Reconcile(api_url=STRIPE_API, accounts=("acct_1", "acct_2"))
    row = await Office(database_url, stripe_route(reconcile=reconcile)).reconcile("stripe")
    assert row["recovered"] == 2
    found = await ledger.rows("select event_id, account from gateway.processed_events order by 1")
    assert [tuple(r.values()) for r in found] == [("evt_00002", "acct_1"), ("evt_00003", "acct_2")]


async def test_a_live_delivery_of_a_reconciled_event_is_a_plain_duplicate(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    """Their bytes differ by nature: that is no conflict to be warned of."""
    stripe.events = [stripe_event(1, NOW - 30 * MINUTE)]
    await Office(database_url, stripe_route()).reconcile("stripe")
    [claimed] = await claim_all(database_url, [make_claim("evt_00001")])
    assert (claimed.verdict, claimed.conflict) == ("duplicate", False)


async def test_what_cannot_become_an_event_is_told_and_holds_up_nothing(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    at = NOW - 30 * MINUTE
    stripe.events = [
        stripe_event(1, at, livemode="perhaps"),
        stripe_event(2, at, data={"object": {"text": "x" * 3000}}),
        stripe_event(3, at),
        stripe_event(4, at, data={"object": {"id": "in_4", "amount": 2**70}}),
    ]
    office = Office(database_url, stripe_route(max_body=2000))
    row = await office.reconcile("stripe")
    assert (row["status"], row["recovered"], row["unrecoverable"]) == ("done", 1, 3)
    gaps = await ledger.rows(
        "select event_id, reason from gateway.gaps where status <> 'recovered'"
    )
    reasons = {gap["event_id"]: gap["reason"] for gap in gaps}
    assert "livemode" in reasons["evt_00001"]
    assert "over max_body" in reasons["evt_00002"]
    assert "64-bit" in reasons["evt_00004"]


async def test_a_listing_that_stands_still_is_not_followed_for_ever(
    play: Any, database_url: str
) -> None:
    """A proxy that drops the parameters gives the same page again and again."""
    events = [stripe_event(n, NOW - 30 * MINUTE) for n in (2, 1)]

    async def stripe(request: httpx.Request) -> httpx.Response:
        has_more = "created[lt]" not in request.url.params
        return httpx.Response(200, json={"data": events, "has_more": has_more})

    async def endless(request: httpx.Request) -> httpx.Response:
        data = [] if "created[lt]" in request.url.params else events
        return httpx.Response(200, json={"data": data, "has_more": True})

    async def github(_: httpx.Request) -> httpx.Response:
        link = f'<{GITHUB_API}/{HOOK}/deliveries?cursor=v1_7>; rel="next"'
        shown = [one.shown() for one in deliveries(2, before=NOW - 5 * MINUTE)]
        return httpx.Response(200, json=shown, headers={"link": link})

    office = Office(database_url, stripe_route(), github_route())
    for route, url, answer in (
        ("stripe", STRIPE_API, stripe),
        ("stripe", STRIPE_API, endless),
        ("github", GITHUB_API, github),
    ):
        play(url, answer)
        async with asyncio.timeout(PATIENCE_S):
            row = await office.reconcile(route)
        assert row["status"] == "failed"
        assert "listing does not go on" in row["error"]


async def test_a_long_search_for_the_beginning_shows_that_somebody_is_there(
    play: Any, database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account with nothing before --since is paged through once before anything is listed."""
    fake = FakeStripe(page=1, events=[stripe_event(n, NOW - 30 * MINUTE) for n in range(5)])
    steps: list[datetime] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        if "starting_after" in request.url.params:
            steps.append(await ledger.value("select stepped_at from gateway.reconciliations"))
        return await fake.answer(request)

    play(STRIPE_API, answer)
    monkeypatch.setattr("gateway.operations.reconcile.run.COUNT_EVERY_S", 0.0)
    row = await Office(database_url, stripe_route()).reconcile("stripe")
    assert row["status"] == "done"
    assert len(set(steps)) == len(steps) == 4


@pytest.mark.parametrize("ahead", [-10 * DAY, 10 * DAY])
async def test_the_clock_of_the_ledger_decides_and_not_that_of_this_host(
    ahead: timedelta,
    stripe: FakeStripe,
    database_url: str,
    ledger: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys are forgotten by it: a host that is behind would fetch what was seen and forgotten,
    and one that is ahead leave a hole between its run and the next."""
    for module in ("runs", "run"):
        monkeypatch.setattr(
            f"gateway.operations.reconcile.{module}.datetime", _clock(ahead), raising=False
        )
    route = stripe_route(retention=Retention(key=2 * DAY, payload=DAY, dead=DAY))
    stripe.events = [stripe_event(1, NOW - 5 * DAY), stripe_event(2, NOW - DAY)]
    row = await Office(database_url, route).reconcile("stripe", 20 * DAY)
    assert await ids(ledger, "stripe") == ["evt_00002"]
    assert abs(row["until"] - NOW) < 5 * MINUTE


def _clock(ahead: timedelta) -> type[datetime]:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + ahead

    return Wrong


async def test_what_an_earlier_run_found_and_could_not_claim_is_fetched_by_its_id(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    stripe.events = [stripe_event(1, NOW - 5 * HOUR)]
    for event_id in ("evt_00001", "evt_gone"):
        await ledger.run(
            "insert into gateway.gaps (route, event_id, run_id, type, handle, handled_at,"
            " occurred_at, is_first) values ('stripe', $1, 0, 'invoice.paid', '', $2, $2, true)",
            event_id,
            NOW - 5 * HOUR,
        )
    row = await Office(database_url, stripe_route()).reconcile("stripe", MINUTE)
    assert (row["missing"], row["recovered"], row["unrecoverable"]) == (2, 1, 1)
    assert await ids(ledger, "stripe") == ["evt_00001"]


async def test_limits_and_bad_moments_of_stripe_are_waited_out(
    play: Any, database_url: str, ledger: Reader
) -> None:
    fake = FakeStripe(events=[stripe_event(1, NOW - 30 * MINUTE)])
    trouble: list[httpx.Response | Exception] = [
        httpx.Response(429, json={"error": {"message": "slow down"}}),
        httpx.Response(429, headers={"retry-after": "7"}),
        httpx.Response(500),
        httpx.ReadTimeout("quoting Bearer rk_test_of_the_suite"),
    ]

    async def answer(request: httpx.Request) -> httpx.Response:
        if not trouble:
            return await fake.answer(request)
        first = trouble.pop(0)
        if isinstance(first, Exception):
            raise first
        return first

    play(STRIPE_API, answer)
    office = Office(database_url, stripe_route())
    row = await office.reconcile("stripe")
    assert (row["status"], row["recovered"]) == ("done", 1)
    assert office.rests == [2.0, 7.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            httpx.Response(401, json={"error": {"message": "Invalid key: rk_test_x"}}),
            "refused the key",
        ),
        (httpx.Response(403, json={"error": {"message": "no rak_event_read"}}), "rak_event_read"),
        (httpx.Response(503), "did not answer GET /v1/events, 5 times: 503"),
        (httpx.Response(200, text="<html>"), "cannot be read"),
        (httpx.Response(200, json={"data": 7}), "cannot be read, at data"),
        (httpx.Response(200, json={"data": [{}], "has_more": False}), "without an id"),
        (httpx.Response(302, headers={"location": "http://elsewhere"}), "with 302"),
    ],
)
async def test_an_api_that_fails_is_a_failed_run_that_says_why(
    answer: httpx.Response, said: str, play: Any, database_url: str, ledger: Reader
) -> None:
    async def fail(_: httpx.Request) -> httpx.Response:
        return answer

    play(STRIPE_API, fail)
    row = await Office(database_url, stripe_route()).reconcile("stripe")
    assert row["status"] == "failed"
    assert said in row["error"]
    assert "rk_test" not in row["error"]


async def test_a_limit_that_lasts_stops_the_run_which_goes_on_later(
    play: Any, database_url: str, ledger: Reader
) -> None:
    fake = FakeStripe(page=5, events=[stripe_event(n, NOW - 50 * MINUTE) for n in range(20)])
    limited = True

    async def answer(request: httpx.Request) -> httpx.Response:
        if limited and len(fake.requests) >= 7:
            return httpx.Response(429, headers={"retry-after": "3600"})
        return await fake.answer(request)

    play(STRIPE_API, answer)
    office = Office(database_url, stripe_route())
    row = await office.reconcile("stripe")
    assert (row["status"], office.rests) == ("stopped", [])
    assert 0 < row["recovered"] < 20
    limited = False
    seen = row["listed"]
    row = await office.resume("stripe")
    assert (row["status"], row["listed"]) == ("done", 20)
    assert row["recovered"] == row["missing"] == 20
    assert seen > 0
    assert await ids(ledger, "stripe") == [f"evt_{n:05}" for n in range(20)]


async def test_since_is_cut_to_what_provider_and_ledger_know(
    stripe: FakeStripe, github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    """A key that was forgotten would come again as new."""
    office = Office(database_url, stripe_route(), github_route())
    row = await office.reconcile("stripe", 90 * DAY)
    assert abs(row["since"] - (NOW - 30 * DAY)) < 5 * MINUTE
    assert "stripe keeps no more" in row["note"]
    row = await office.reconcile("github", 90 * DAY)
    assert abs(row["since"] - (NOW - 3 * DAY)) < 5 * MINUTE
    short = Retention(key=2 * DAY, payload=DAY, dead=DAY)
    office = Office(database_url, github_route(retention=short))
    row = await office.reconcile("github", 90 * DAY)
    assert abs(row["since"] - (NOW - 2 * DAY + HOUR)) < 5 * MINUTE
    assert "retention.key 2d" in row["note"]
    own = replace(GITHUB_RECONCILE, api_url="https://ghes.example.com/api/v3")
    await Office(database_url, github_route(reconcile=own)).begin("github", 90 * DAY)
    since = await ledger.value("select since from gateway.reconciliations where status = 'running'")
    assert abs(since - (NOW - 7 * DAY)) < 5 * MINUTE
    with pytest.raises(CommandFailed, match="in the future"):
        await Office(database_url, stripe_route()).reconcile("stripe", -DAY)


async def test_a_forgotten_key_does_not_come_again(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    """The event was seen, done and pruned: nobody may take it for a gap."""
    route = stripe_route(retention=Retention(key=2 * DAY, payload=DAY, dead=DAY))
    stripe.events = [stripe_event(1, NOW - 3 * DAY), stripe_event(2, NOW - DAY)]
    row = await Office(database_url, route).reconcile("stripe", 20 * DAY)
    assert row["note"] is not None
    assert await ids(ledger, "stripe") == ["evt_00002"]


async def test_a_dry_run_counts_and_changes_nothing(
    stripe: FakeStripe, github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    stripe.events = [stripe_event(n, NOW - 30 * MINUTE) for n in range(3)]
    github.sent = deliveries(4, before=NOW - 10 * MINUTE)
    office = Office(database_url, stripe_route(), github_route())
    for route, missing in (("stripe", 3), ("github", 4)):
        row = await office.reconcile(route, dry_run=True)
        assert (row["missing"], row["recovered"], row["status"]) == (missing, 0, "done")
    assert github.asked == []
    assert await ledger.value("select count(*) from gateway.processed_events") == 0
    assert await ledger.value("select count(*) from gateway.gaps") == 0
    connection = await connect(database_url, name="test")
    assert await last_runs(connection) == []
    await connection.close()


async def test_github_is_asked_once_for_each_guid_that_is_missing(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    """Whatever it recorded: a ledger that was restored forgets acknowledged ones, too."""
    github.page = 10
    github.sent = deliveries(40, before=NOW - 10 * MINUTE)
    for sent in github.sent[:20]:
        sent.status_code = 200
    github.sent += [
        Sent(id=5000 + n, guid="guid-00003", at=NOW - 8 * MINUTE, redelivery=True) for n in range(3)
    ]
    await arrive(database_url, *(f"guid-{n:05}" for n in range(10, 20)))
    office = Office(database_url, github_route())
    row = await office.reconcile("github")
    assert figures(row) == {
        "listed": 43, "missing": 30, "recovered": 30, "outstanding": 0, "unrecoverable": 0,
    }  # fmt: skip
    assert sorted(await ids(ledger, "github")) == [f"guid-{n:05}" for n in range(40)]
    assert len(github.asked) == 30
    assert 5002 in github.asked
    again = await office.reconcile("github")
    assert again["missing"] == 0
    assert len(github.asked) == 30


async def test_unwanted_young_and_old_deliveries_are_no_gaps(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = [
        Sent(id=1, guid="old", at=NOW - 2 * HOUR),
        Sent(id=2, guid="unwanted", at=NOW - 30 * MINUTE, event="issues", action="closed"),
        Sent(id=3, guid="wanted", at=NOW - 30 * MINUTE, event="issues", action="opened"),
        Sent(id=4, guid="young", at=datetime.now(UTC), event="issues", action="opened"),
    ]
    office = Office(database_url, github_route(types=("issues.opened",)))
    row = await office.reconcile("github")
    assert (row["missing"], github.asked) == (1, [3])


async def test_a_guid_that_was_refused_as_repeated_counts_as_seen(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = deliveries(2, before=NOW - 10 * MINUTE)
    connection = await connect(database_url, name="test")
    await note_refusals(connection, [Refusal("github", "guid-00000", b"digest")])

    async def refuse(sent: Sent) -> int:
        await note_refusals(connection, [Refusal("github", sent.guid, b"digest")])
        return 403

    github.deliver = refuse
    office = Office(database_url, github_route())
    assert (await office.reconcile("github", dry_run=True))["missing"] == 1
    row = await office.reconcile("github")
    assert github.asked == [1001]
    assert figures(row) == {
        "listed": 2, "missing": 0, "recovered": 0, "outstanding": 0, "unrecoverable": 0,
    }  # fmt: skip
    await connection.close()


async def test_a_refused_guid_is_asked_for_once_its_type_is_flagged(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    """The rule for a type was corrected: what it refused before is not lost."""
    github.sent = deliveries(2, before=NOW - 10 * MINUTE)
    joined, pushed = (sent.guid for sent in github.sent)
    first = [
        make_claim(f"first {type}", route="github", type=type, body=type.encode(), repeats=REFUSE)
        for type in ("membership.added", "push")
    ]
    await claim_all(database_url, first)
    connection = await connect(database_url, name="test")
    noted = [Refusal("github", id, c.digest) for id, c in zip((joined, pushed), first, strict=True)]
    await note_refusals(connection, noted)
    await connection.close()
    office = Office(database_url, github_route())
    row = await office.reconcile("github", dry_run=True)
    assert row["missing"] == 1, "that of the push has been seen"
    await office.reconcile("github")
    assert github.asked == [github.sent[0].id]


async def test_of_one_captured_body_only_so_many_refusals_are_kept(
    database_url: str, ledger: Reader
) -> None:
    connection = await connect(database_url, name="test")
    for start in range(0, 300, 30):
        made_up = [Refusal("github", f"fake-{n}", b"captured") for n in range(start, start + 30)]
        await note_refusals(connection, [*made_up, *made_up])
    await note_refusals(connection, [Refusal("github", "honest", b"other")])
    kept = await ledger.rows("select digest, count(*) from gateway.refusals group by 1 order by 2")
    assert [tuple(row.values()) for row in kept] == [(b"other", 1), (b"captured", 100)]
    await connection.close()


async def pass_time(ledger: Reader, github: FakeGithub) -> None:
    """Five minutes and more, for what was asked for and delivered again."""
    await ledger.run(
        "update gateway.gaps set asked_at = asked_at - interval '6 min',"
        " handled_at = handled_at - interval '6 min'"
    )
    for sent in github.sent:
        sent.at -= 6 * MINUTE


async def test_what_does_not_come_is_asked_for_again_by_later_runs_and_given_up_in_the_end(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = deliveries(1, before=NOW - 10 * MINUTE)

    async def lost(_: Sent) -> int:
        return 403

    github.deliver = lost
    office = Office(database_url, github_route(wait=timedelta(0)))
    for asked in range(1, MOST_ASKS + 1):
        row = await office.reconcile("github", actor="schedule")
        assert (row["outstanding"], row["unrecoverable"]) == (1, 0)
        assert len(github.asked) == asked
        row = await office.reconcile("github", actor="schedule")  # the redelivery is under way
        assert len(github.asked) == asked
        await asyncio.gather(*github.tasks)
        await pass_time(ledger, github)
    row = await office.reconcile("github", actor="schedule")
    assert (row["outstanding"], row["unrecoverable"]) == (0, 1)
    assert len(github.asked) == MOST_ASKS
    reason = await ledger.value("select reason from gateway.gaps")
    assert reason == "asked for 3 times; the last delivery: 403 timed out"
    row = await office.reconcile("github", actor="schedule")
    assert len(github.asked) == MOST_ASKS
    row = await office.reconcile("github", actor="ann")  # a person may know that it is mended
    assert len(github.asked) == MOST_ASKS + 1


async def test_a_redelivery_that_is_under_way_is_not_asked_for_again(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    """Also while GitHub has nothing to show of it yet."""
    github.sent = deliveries(3, before=NOW - 10 * MINUTE)
    free, deliver = asyncio.Event(), github.deliver

    async def slowly(sent: Sent) -> int:
        await free.wait()
        return await deliver(sent)

    github.deliver = slowly
    office = Office(database_url, github_route(wait=timedelta(0)))
    rows = [await office.reconcile("github") for _ in range(3)]
    free.set()
    assert [row["outstanding"] for row in rows] == [3, 3, 3]
    assert github.asked == [1000, 1001, 1002]
    await asyncio.gather(*github.tasks)
    row = await office.reconcile("github")
    assert (row["missing"], row["recovered"], len(github.asked)) == (3, 3, 3)


async def test_a_gap_that_may_have_come_and_been_forgotten_is_not_asked_for_again(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = [Sent(id=1, guid="guid-1", at=NOW - 2 * HOUR, redelivery=True)]
    await ledger.run(
        "insert into gateway.gaps (route, event_id, run_id, type, handle, handled_at,"
        " occurred_at, is_first, status, asks) values ('github', 'guid-1', 0, 'push', '1', $1, $2,"
        " true, 'asked', 1)",
        NOW - 2 * HOUR,
        NOW - 40 * DAY,
    )
    row = await Office(database_url, github_route()).reconcile("github")
    assert (row["unrecoverable"], github.asked) == (1, [])


async def test_a_guid_of_which_only_redeliveries_are_listed_is_not_asked_for(
    github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    """Its first delivery may be older than any key: it may have been seen, and forgotten."""
    github.sent = [Sent(id=9, guid="chain", at=NOW - 30 * MINUTE, redelivery=True)]
    row = await Office(database_url, github_route()).reconcile("github")
    assert (row["outstanding"], github.asked) == (1, [])
    github.sent.insert(0, Sent(id=1, guid="chain", at=NOW - 3 * HOUR))
    row = await Office(database_url, github_route()).reconcile("github", 4 * HOUR)
    assert (row["recovered"], github.asked) == (1, [9])


async def test_limits_of_github_are_respected(
    play: Any, github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = deliveries(2, before=NOW - 10 * MINUTE)
    reset = str(int(datetime.now(UTC).timestamp()) + 30)
    trouble = [
        httpx.Response(403, headers={"retry-after": "11"}),
        httpx.Response(403, json={"message": "You have exceeded a secondary rate limit."}),
        httpx.Response(403, headers={"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}),
    ]

    async def answer(request: httpx.Request) -> httpx.Response:
        return trouble.pop(0) if trouble else await github.answer(request)

    play(GITHUB_API, answer)
    office = Office(database_url, github_route())
    row = await office.reconcile("github")
    assert (row["status"], row["recovered"]) == ("done", 2)
    assert office.rests[0] == 11.0
    assert sum(office.rests[1:4]) == 60.0  # in pieces, with a sign of life after each
    assert 20 < sum(office.rests[4:]) <= 30


async def test_one_delivery_that_github_cannot_deal_with_does_not_hold_up_the_others(
    play: Any, github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = deliveries(4, before=NOW - 10 * MINUTE)

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/1001/attempts"):
            return httpx.Response(500)
        if request.url.path.endswith("/1002/attempts"):
            return httpx.Response(422, json={"message": "too old"})
        return await github.answer(request)

    play(GITHUB_API, answer)
    office = Office(database_url, github_route(wait=timedelta(0)))
    row = await office.reconcile("github")
    await asyncio.gather(*github.tasks)
    assert (row["status"], row["unrecoverable"]) == ("done", 1)
    assert sorted(await ids(ledger, "github")) == ["guid-00000", "guid-00003"]
    reasons = await ledger.rows(
        "select reason from gateway.gaps where reason is not null order by 1"
    )
    assert "422: too old" in reasons[0]["reason"]
    assert "did not answer POST" in reasons[1]["reason"]


async def test_a_token_that_may_not_redeliver_fails_the_run_and_burns_no_ask(
    play: Any, github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = deliveries(2, before=NOW - 10 * MINUTE)

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(403, json={"message": "Resource not accessible"})
        return await github.answer(request)

    play(GITHUB_API, answer)
    row = await Office(database_url, github_route()).reconcile("github")
    assert row["status"] == "failed"
    assert "Resource not accessible" in row["error"]
    assert await ledger.value("select max(asks) from gateway.gaps") == 0


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="{"),
        httpx.Response(200, json={"message": "hello"}),
        httpx.Response(200, json=[{"id": "x"}]),
        httpx.Response(200, json=[deliveries(1, before=NOW)[0].shown() | {"guid": "a\x00b"}]),
        httpx.Response(200, json=[], headers={"link": '<https://evil.example/?x=1>; rel="next"'}),
        httpx.Response(200, json=[], headers={"link": '<https://[bad>; rel="next"'}),
    ],
)
async def test_nonsense_from_github_is_a_failed_run(
    answer: httpx.Response, play: Any, database_url: str, ledger: Reader
) -> None:
    async def talk(_: httpx.Request) -> httpx.Response:
        return answer

    play(GITHUB_API, talk)
    row = await Office(database_url, github_route()).reconcile("github")
    assert row["status"] == "failed"
    assert "GitHub" in row["error"]


@needs_own_session
async def test_one_run_at_a_time_and_a_dead_one_is_gone_on_with(
    play: Any, database_url: str, ledger: Reader
) -> None:
    fake = FakeStripe(page=5, events=[stripe_event(n, NOW - 50 * MINUTE) for n in range(20)])
    held, release = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if len(fake.requests) == 7 and not release.is_set():
            held.set()
            await release.wait()
        return await fake.answer(request)

    play(STRIPE_API, answer)
    office = Office(database_url, stripe_route())
    first = asyncio.create_task(carry_out(office.means, await office.begin("stripe")))
    await held.wait()
    with pytest.raises(CommandFailed, match="is under way"):
        await office.begin("stripe")
    with pytest.raises(CommandFailed, match="is under way"):
        await office.resume("stripe")
    await ledger.run(  # as if the process were gone at once
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'gateway reconcile' and datname = current_database()"
    )
    first.cancel()
    with suppress(asyncio.CancelledError, asyncpg.PostgresError, OSError):
        await first
    assert await ledger.value("select status from gateway.reconciliations") == "running"
    release.set()
    row = await office.resume("stripe")
    assert (row["status"], row["listed"]) == ("done", 20)
    assert row["recovered"] == row["missing"] == 20
    assert len(await ids(ledger, "stripe")) == 20
    with pytest.raises(CommandFailed, match="to be resumed"):
        await office.resume("stripe")


async def test_a_killed_run_of_github_asks_nobody_twice(
    play: Any, github: FakeGithub, database_url: str, ledger: Reader
) -> None:
    github.sent = deliveries(10, before=NOW - 10 * MINUTE)
    held = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and len(github.asked) == 5 and not held.is_set():
            held.set()
            await asyncio.Event().wait()
        return await github.answer(request)

    play(GITHUB_API, answer)
    office = Office(database_url, github_route(wait=timedelta(0)))
    first = asyncio.create_task(carry_out(office.means, await office.begin("github")))
    await held.wait()
    first.cancel()
    await asyncio.wait({first})
    stopped = await ledger.row("select * from gateway.reconciliations")
    assert (stopped["status"], stopped["error"]) == ("stopped", "it was interrupted")
    row = await office.resume("github")
    await asyncio.gather(*github.tasks)
    assert len(github.asked) == len(set(github.asked)) == 9
    assert row["status"] == "done"
    # The one that was being asked for: nobody knows whether GitHub heard it.
    await pass_time(ledger, github)
    row = await office.reconcile("github")
    await asyncio.gather(*github.tasks)
    assert sorted(set(github.asked)) == list(range(1000, 1010))
    assert len(await ids(ledger, "github")) == 10


async def test_a_schedule_begins_now_and_goes_on_where_the_last_good_run_ended(
    stripe: FakeStripe, database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened before the gateway was there may have been dealt with by something else."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    stripe.events = [stripe_event(1, NOW - 2 * HOUR), stripe_event(2, NOW - 5 * MINUTE)]
    route = stripe_route(reconcile=Reconcile(api_url=STRIPE_API, every=15 * MINUTE))
    hinted: list[int] = []
    pool = await open_pool(database_url, name="test", size=2, command_timeout_s=30)
    schedules = [
        Schedule(
            pool,
            encryption=OPEN,
            url=database_url,
            config=make_config(route),
            registry=Registry([subscribe(count)]),
            hint=hinted.extend,
        )
        for _ in range(3)
    ]

    async def look() -> None:
        """Where all got in each other's way, the next look goes on with it."""
        running = "select count(*) from gateway.reconciliations where status = 'running'"
        await asyncio.gather(*(schedule.look() for schedule in schedules))
        while await ledger.value(running):
            await asyncio.gather(*(schedule.look() for schedule in schedules))

    await look()
    assert await ids(ledger, "stripe") == []
    runs = await ledger.rows("select * from gateway.reconciliations")
    assert {run["status"] for run in runs} == {"done"}
    await look()
    assert await ledger.value("select count(*) from gateway.reconciliations") == len(runs)
    hour_later = (
        "update gateway.reconciliations set until = until - interval '1 h',"
        " since = since - interval '1 h', finished_at = finished_at - interval '1 h'"
    )
    await ledger.run(hour_later)
    await look()
    assert await ids(ledger, "stripe") == ["evt_00002"]
    assert len(hinted) == 1
    assert await ledger.value("select count(*) from gateway.audit") == 0
    await pool.close()


async def test_until_a_scheduled_run_is_good_the_next_begins_where_the_first_did(
    play: Any, database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is missed while the provider refuses the key is never looked for."""
    monkeypatch.setenv("STRIPE_API_KEY", ENVIRON["STRIPE_API_KEY"])
    is_away = True
    fake = FakeStripe(events=[stripe_event(1, NOW - 2 * HOUR), stripe_event(2, NOW - 30 * MINUTE)])

    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(403) if is_away else await fake.answer(request)

    play(STRIPE_API, answer)
    route = stripe_route(reconcile=Reconcile(api_url=STRIPE_API, every=15 * MINUTE))
    pool = await open_pool(database_url, name="test", size=2, command_timeout_s=30)
    schedule = Schedule(
        pool,
        encryption=OPEN,
        url=database_url,
        config=make_config(route),
        registry=Registry([subscribe(count)]),
        hint=lambda _: None,
    )
    for _ in range(2):
        await schedule.look()
        await ledger.run(
            "update gateway.reconciliations set until = until - interval '30 min',"
            " since = since - interval '30 min', finished_at = finished_at - interval '30 min'"
        )
    is_away = False
    await schedule.look()
    assert await ids(ledger, "stripe") == ["evt_00002"]
    await pool.close()


async def test_a_schedule_outlives_a_failing_provider_and_a_missing_key(
    play: Any, database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: httpx.Request) -> httpx.Response:
        return httpx.Response(401)

    play(STRIPE_API, fail)
    route = stripe_route(reconcile=Reconcile(api_url=STRIPE_API, every=15 * MINUTE))
    pool = await open_pool(database_url, name="test", size=2, command_timeout_s=30)
    schedule = Schedule(
        pool,
        url=database_url,
        encryption=OPEN,
        config=make_config(route),
        registry=Registry([]),
        hint=print,
    )
    monkeypatch.delenv("STRIPE_API_KEY", raising=False)
    await schedule.look()
    monkeypatch.setenv("STRIPE_API_KEY", "rk_test_wrong")
    await schedule.look()
    [run] = await last_runs(pool)
    assert (run["status"], run["actor"]) == ("failed", "schedule")
    assert "refused the key" in run["error"]
    await schedule.tidy()
    await pool.close()


async def test_routes_that_cannot_be_reconciled_are_told_why(database_url: str) -> None:
    office = Office(
        database_url,
        make_route("stripe"),
        github_route(reconcile=None),
        make_route("tasks", provider=PROVIDERS["publish"]),
        stripe_route(name="live", livemode=True),
    )
    with pytest.raises(CommandFailed, match="it has stripe, github, tasks, live"):
        await office.begin("nothing")
    with pytest.raises(CommandFailed, match="no api_key"):
        await office.begin("stripe")
    with pytest.raises(CommandFailed, match="where its webhook is"):
        await office.begin("github")
    with pytest.raises(CommandFailed, match="only github and stripe can"):
        await office.begin("tasks")
    with pytest.raises(ConfigInvalid, match="a test key"):
        await office.begin("live")
    with pytest.raises(CommandFailed, match="--since"):
        await Office(database_url, stripe_route()).begin("stripe", None)


async def test_a_persons_order_is_audited(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    row = await Office(database_url, stripe_route()).reconcile("stripe")
    audit = await ledger.row("select actor, action, route, reason from gateway.audit")
    assert (audit["actor"], audit["action"], audit["route"]) == ("ann", "reconcile", "stripe")
    assert audit["reason"].startswith(f"run {row['id']}, since 20")


async def test_what_was_closed_long_ago_is_forgotten(
    stripe: FakeStripe, database_url: str, ledger: Reader
) -> None:
    stripe.events = [stripe_event(1, NOW - 30 * MINUTE)]
    office = Office(database_url, stripe_route())
    for _ in range(2):
        await office.reconcile("stripe", actor="schedule")
    await ledger.run("update gateway.reconciliations set finished_at = now() - interval '31 d'")
    await ledger.run("update gateway.gaps set closed_at = now() - interval '31 d'")
    await ledger.run(
        "insert into gateway.refusals (route, event_id, digest, refused_at)"
        " values ('github', 'g', 'd', now() - interval '36 d')"
    )
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=30)
    schedule = Schedule(
        pool,
        url=database_url,
        encryption=OPEN,
        config=office.means.config,
        registry=Registry([]),
        hint=print,
    )
    await schedule.tidy()
    connection = await pool.acquire()
    assert (await find_reconciliation(connection, 2))["status"] == "done"
    await pool.release(connection)
    await pool.close()
    for table, left in (("reconciliations", 1), ("gaps", 0), ("refusals", 0)):
        assert await ledger.value(f"select count(*) from gateway.{table}") == left  # noqa: S608


async def test_what_is_old_is_forgotten_until_none_is_left(
    database_url: str, ledger: Reader
) -> None:
    await ledger.run(
        "insert into gateway.refusals (route, event_id, digest, refused_at)"
        " select 'github', 'guid_' || n, sha256('x'), now() - n * interval '1 day'"
        " from generate_series(1, 7) as n"
    )
    connection = await connect(database_url, name="test")
    assert await delete_all(connection, "forget_refusals", timedelta(days=2.5), 2) == 5
    await connection.close()
    assert await ledger.value("select count(*) from gateway.refusals") == 2
