"""Renamed handlers and routes: what was done under the old name counts under the new one."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from gateway import Context, Event
from gateway.api.operations.bulk import DELIVER, DeliverParams
from gateway.api.operations.dead import DEAD, DeadParams
from gateway.api.operations.events import EVENTS, SHOW, EventsParams, ShowParams
from gateway.api.operations.health import STATUS, StatusParams
from gateway.api.operations.pauses import PAUSE, PAUSES, PauseParams, PausesParams
from gateway.base.errors import CommandFailed, ConfigInvalid, StorageUnavailable
from gateway.base.model import OnDead
from gateway.base.names import NO_NAMES, Names, guess_names
from gateway.base.secrets import Secret
from gateway.config.project import Project
from gateway.config.registry import Subscription
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.claims import Claim, Claimer
from gateway.ledger.connection import connect
from gateway.ledger.encryption import ResolvingCodec, vault_of
from gateway.ledger.names import find_lost_handlers
from gateway.operations.bulk import runner
from gateway.privacy.encryption import KeyRing
from gateway.providers import PROVIDERS
from gateway.receive.spool.spool import Spool
from gateway.telemetry.logs import show_names
from tests.support.ledger import Reader, make_claim
from tests.support.naming import claiming_as, desk_of, make_project, read_names, settle
from tests.support.waiting import until
from tests.support.workers import Function, make_config, make_route, subscribe, working

OLD, NEW, NEWEST = "handlers.billing.on_checkout", "handlers.billing.fulfil", "handlers.shop.fulfil"
RECEIPTS: Final = 305
KEYS: Final = KeyRing((Secret(bytes(range(32))),))
DAY: Final = timedelta(days=1)


@pytest.fixture(autouse=True)
def unnamed_logs() -> Iterator[None]:
    yield
    show_names(NO_NAMES)


class Mail:
    """A mail service without any idempotency of its own: a second receipt shows."""

    def __init__(self) -> None:
        self.receipts: list[str] = []
        self.keys: dict[str, set[str]] = {}

    async def send(self, event_id: str) -> None:
        self.receipts.append(event_id)

    async def handler(self, event: Event, ctx: Context) -> None:
        self.keys.setdefault(event.id, set()).add(ctx.idempotency_key("charge"))
        await ctx.once("receipt", self.send, event.id)


async def fail(event: Event, ctx: Context) -> None:
    raise RuntimeError("not now")


def named(
    function: Function, name: str, formerly: tuple[str, ...] = (), **more: Any
) -> Subscription:
    return subscribe(function, name=name, formerly=formerly, **more)


async def claim(project: Project, *ids: str, **more: Any) -> None:
    """Events that come in at a `serve` of this project."""
    handlers = [item.label for item in project.registry.subscriptions]
    claims = [make_claim(id, handlers=handlers, **more) for id in ids]
    async with claiming_as(project) as claimer:
        await asyncio.gather(*map(claimer.claim, claims))


async def run_all(project: Project, ledger: Reader, **more: Any) -> None:
    """Let a worker of this project finish what is pending."""
    url = project.settings.database_url
    assert url is not None
    async with working(
        url.get_secret_value(),
        *project.registry.subscriptions,
        config=project.config,
        ring=project.ring,
        **more,
    ):
        await until(lambda: _settled(ledger))


async def _settled(ledger: Reader) -> bool:
    return not {"pending", "running"} & (await ledger.statuses()).keys()


async def deliver(project: Project, handler: str, **more: Any) -> int:
    """`gateway replay --handler HANDLER --since 7d`; returns how many events it delivered."""
    async with desk_of(project) as desk:
        since = datetime.now(UTC) - 7 * DAY
        done = await desk.ask(DELIVER, DeliverParams(handler=handler, since=since, **more))
        if done["bulk"] is None:
            return 0
        async for bulk in runner(desk.office).run(done["bulk"]):
            moved = bulk["moved"]
        return moved


async def test_a_backfill_after_a_rename_with_formerly_sends_nothing_again(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, *(f"evt_{n:03}" for n in range(RECEIPTS)))
    await run_all(old, ledger)
    assert len(mail.receipts) == RECEIPTS
    new = make_project(database_url, named(mail.handler, NEW, (OLD,)))
    async with working(database_url, *new.registry.subscriptions):
        assert await deliver(new, NEW) == 0
        assert await deliver(new, OLD) == 0  # a former name means the same
    assert len(mail.receipts) == RECEIPTS


async def test_a_backfill_after_a_rename_without_formerly_is_refused(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, *(f"evt_{n:03}" for n in range(RECEIPTS)))
    await run_all(old, ledger)
    new = make_project(database_url, named(mail.handler, NEW))
    async with working(database_url, *new.registry.subscriptions):
        for dry_run in (True, False):
            with pytest.raises(CommandFailed) as refused:
                await deliver(new, NEW, dry_run=dry_run)
            said = str(refused.value)
            assert f"305 events were done by {OLD}, which no worker has any more" in said
            assert f'formerly=["{OLD}"]' in said
            assert "--as-new" in said
        assert len(mail.receipts) == RECEIPTS
        assert await deliver(new, NEW, as_new=True) == RECEIPTS
        await until(lambda: len(mail.receipts) == 2 * RECEIPTS)


async def test_a_backfill_of_a_new_handler_beside_others_is_not_refused(
    database_url: str, ledger: Reader
) -> None:
    mail, other = Mail(), Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    both = make_project(database_url, named(mail.handler, OLD), named(other.handler, NEW))
    async with working(database_url, *both.registry.subscriptions):
        assert await deliver(both, NEW) == 1
        await until(lambda: other.receipts == ["evt_1"])
    assert mail.receipts == ["evt_1"]


async def test_a_replay_under_the_new_name_has_the_old_keys_and_effects(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    new = make_project(database_url, named(mail.handler, NEW, (OLD,)))
    async with working(database_url, *new.registry.subscriptions):
        await ledger.replay((await ledger.delivery())["id"])
        await until(lambda: _has_run(ledger, 2))
    assert mail.receipts == ["evt_1"]
    assert len(mail.keys["evt_1"]) == 1
    assert (await ledger.delivery())["handler"] == OLD


async def _has_run(ledger: Reader, runs: int) -> bool:
    row = await ledger.row("select status, runs from gateway.deliveries")
    return row == {"status": "done", "runs": runs}


async def test_once_per_still_skips_after_a_rename(database_url: str, ledger: Reader) -> None:
    mail = Mail()
    body = b'{"data": {"object": {"id": "in_1"}}}'
    flow: dict[str, Any] = {"once_per": KeyPath.parse("data.object.id")}
    old = make_project(database_url, named(mail.handler, OLD, **flow))
    await claim(old, "evt_1", body=body)
    await run_all(old, ledger)
    new = make_project(database_url, named(mail.handler, NEW, (OLD,), **flow))
    await claim(new, "evt_2", body=body)
    await run_all(new, ledger)
    assert mail.receipts == ["evt_1"]
    outcomes = await ledger.rows("select outcome from gateway.attempts order by delivery_id")
    assert [row["outcome"] for row in outcomes] == ["done", "skipped"]


async def test_events_of_a_renamed_encrypted_route_still_decrypt_and_are_duplicates(
    database_url: str, ledger: Reader
) -> None:
    seen: list[tuple[str, bytes]] = []

    async def look(event: Event, ctx: Context) -> None:
        seen.append((event.route, event.body))

    before = make_config(make_route("stripe", encrypt=True))
    old = make_project(database_url, named(look, OLD), config=before, ring=KEYS)
    await claim(old, "evt_1", body=b'{"n": 1}')
    await run_all(old, ledger)
    after = make_config(make_route("payments", encrypt=True, formerly=("stripe",)))
    new = make_project(
        database_url, named(look, NEW, (OLD,), route="payments"), config=after, ring=KEYS
    )
    await claim(new, "evt_1", route="payments", body=b'{"n": 1}')
    await claim(new, "evt_2", route="payments", body=b'{"n": 2}')
    async with working(database_url, *new.registry.subscriptions, config=after, ring=KEYS):
        await ledger.replay(
            await ledger.value("select id from gateway.deliveries where event_id = 'evt_1'")
        )
        await until(lambda: len(seen) == 3)
    assert seen[0] == ("stripe", b'{"n": 1}')
    assert sorted(seen[1:]) == [("payments", b'{"n": 1}'), ("payments", b'{"n": 2}')]
    rows = await ledger.rows("select route, event_id from gateway.processed_events order by 2")
    assert [tuple(row.values()) for row in rows] == [("stripe", "evt_1"), ("stripe", "evt_2")]
    assert await ledger.value("select count(*) from gateway.payloads where key_id is null") == 0


async def test_old_and_new_workers_side_by_side_keep_the_order_and_a_rollback_works(
    database_url: str, ledger: Reader
) -> None:
    done: list[str] = []
    gate = asyncio.Event()

    def recording(code: str) -> Function:
        async def handler(event: Event, ctx: Context) -> None:
            await gate.wait()
            done.append(event.id)
            ran.add(code)

        return handler

    ran: set[str] = set()
    flow: dict[str, Any] = {"order_by": KeyPath.parse("customer"), "on_dead": OnDead.PASS}
    old = make_project(database_url, named(recording("old"), OLD, **flow))
    new = make_project(database_url, named(recording("new"), NEW, (OLD,), **flow))
    body = b'{"customer": "cus_1"}'
    events = [f"evt_{n:02}" for n in range(30)]
    for n, id in enumerate(events):  # both codes receive
        project = new if n % 2 else old
        handler = project.registry.subscriptions[0].label
        async with claiming_as(project) as claimer:
            await claimer.claim(
                make_claim(id, handlers=[handler], body=body, order_keys={handler: "cus_1"})
            )
    async with working(database_url, *old.registry.subscriptions):
        async with working(database_url, *new.registry.subscriptions):
            gate.set()
            await until(lambda: len(done) == len(events))
        assert done == events
        await claim(new, "evt_98", body=body)
        await until(lambda: done[-1] == "evt_98")  # by the old code, which goes on alone
    handlers = await ledger.rows("select distinct handler from gateway.deliveries")
    assert handlers == [{"handler": OLD}]
    rolled_back = make_project(database_url, named(recording("back"), OLD, **flow))
    await claim(rolled_back, "evt_99", body=body)
    await run_all(rolled_back, ledger)
    assert done == [*events, "evt_98", "evt_99"]
    assert (await read_names(database_url)).handlers.label(OLD) == OLD


async def test_a_chain_of_names_has_one_identity_when_the_middle_is_gone_from_the_code(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    first = make_project(database_url, named(mail.handler, OLD))
    await claim(first, "evt_1")
    await run_all(first, ledger)
    await settle(make_project(database_url, named(mail.handler, NEW, (OLD,))))
    await settle(make_project(database_url, named(mail.handler, NEW)))
    names = await settle(make_project(database_url, named(mail.handler, NEWEST, (NEW,))))
    for name in (OLD, NEW, NEWEST):
        assert names.handlers.identity(name) == OLD
    assert names.handlers.label(OLD) == NEWEST
    last = make_project(database_url, named(mail.handler, NEWEST))  # without any formerly
    await claim(last, "evt_2")
    assert await deliver(last, NEWEST) == 0
    await run_all(last, ledger)
    assert mail.receipts == ["evt_1", "evt_2"]


async def test_a_handler_that_was_never_renamed_has_no_row(
    database_url: str, ledger: Reader
) -> None:
    project = make_project(database_url, named(Mail().handler, OLD))
    assert await settle(project) == Names()
    assert await ledger.value("select count(*) from gateway.names") == 0


async def test_two_names_that_both_have_a_history_are_refused(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    for name, id in ((OLD, "evt_1"), (NEW, "evt_2")):
        project = make_project(database_url, named(mail.handler, name))
        await claim(project, id)
        await run_all(project, ledger)
    both = make_project(database_url, named(mail.handler, NEW, (OLD,)))
    for keep in (True, False):
        with pytest.raises(ConfigInvalid) as refused:
            await settle(both, keep=keep)
        assert f"{NEW} has run and {OLD} has run, too" in str(refused.value)
        assert f'name="{OLD}"' in str(refused.value)
    with pytest.raises(ConfigInvalid):
        async with working(database_url, *both.registry.subscriptions):
            pass
    assert await ledger.value("select count(*) from gateway.names") == 0


TYPO = "handlers.billing.on_chekout"


async def test_a_typing_error_in_formerly_can_be_corrected_while_nothing_has_run_under_it(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    names = await settle(make_project(database_url, named(mail.handler, NEW, (TYPO,))))
    assert names.handlers.identity(NEW) == TYPO
    moved = make_project(database_url, named(mail.handler, NEWEST, (NEW,)))
    assert (await settle(moved)).handlers.identity(NEWEST) == TYPO
    new = make_project(database_url, named(mail.handler, NEWEST, (NEW, OLD)))
    for keep in (False, True):
        names = await settle(new, keep=keep)
        assert [names.handlers.identity(name) for name in (NEWEST, NEW)] == [OLD, OLD]
    kept = (await read_names(database_url)).handlers
    assert kept.identities == {NEWEST: OLD, NEW: OLD}
    assert kept.label(OLD) == NEWEST
    await claim(new, "evt_2")
    await run_all(new, ledger)
    assert await deliver(new, NEWEST) == 0
    assert mail.receipts == ["evt_1", "evt_2"]


async def test_names_that_only_the_ledger_has_are_corrected_with_a_typing_error(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    await settle(make_project(database_url, named(mail.handler, NEW, (TYPO,))))
    await settle(make_project(database_url, named(mail.handler, NEWEST, (TYPO,))))
    await settle(make_project(database_url, named(mail.handler, NEWEST, (OLD,))))
    assert (await read_names(database_url)).handlers.identities == {NEWEST: OLD, NEW: OLD}


async def test_a_typing_error_in_formerly_under_which_events_have_run_is_refused(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    for id, *more in (("evt_1", OLD), ("evt_2", NEW, (TYPO,))):
        project = make_project(database_url, named(mail.handler, *more))
        await claim(project, id)
        await run_all(project, ledger)
    with pytest.raises(ConfigInvalid, match=f"{TYPO} has run and {OLD} has run, too"):
        await settle(make_project(database_url, named(mail.handler, NEW, (OLD,))))


async def test_a_typing_error_in_formerly_of_a_route_can_be_corrected(
    database_url: str, ledger: Reader
) -> None:
    await claim(make_project(database_url), "evt_1")
    for former in ("stirpe", "stripe"):
        config = make_config(make_route("payments", formerly=(former,)))
        names = await settle(make_project(database_url, config=config))
        assert names.routes.identity("payments") == former
    assert (await read_names(database_url)).routes.identities == {"payments": "stripe"}


async def test_a_name_keeps_its_identity_when_an_older_name_is_added_and_nothing_has_run(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    for former in ((NEW,), (NEW, OLD)):
        names = await settle(make_project(database_url, named(mail.handler, NEWEST, former)))
        assert names.handlers.identity(NEWEST) == NEW


async def test_two_routes_that_both_have_events_are_refused(
    database_url: str, ledger: Reader
) -> None:
    for route, id in (("stripe", "evt_1"), ("payments", "evt_2")):
        project = make_project(database_url, config=make_config(make_route(route)))
        await claim(project, id, route=route)
    both = make_project(
        database_url, config=make_config(make_route("payments", formerly=("stripe",)))
    )
    with pytest.raises(ConfigInvalid, match="payments has events and stripe has events, too"):
        await settle(both)


async def test_a_former_name_without_history_gives_way_to_one_with_history(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    project = make_project(database_url, named(mail.handler, NEW))
    await claim(project, "evt_1")
    await run_all(project, ledger)
    names = await settle(make_project(database_url, named(mail.handler, NEW, (OLD,))))
    assert names.handlers.identity(OLD) == NEW


async def test_a_new_function_under_a_former_name_is_refused(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    await claim(make_project(database_url, named(mail.handler, OLD)), "evt_1")
    await settle(make_project(database_url, named(mail.handler, NEW, (OLD,))))
    reused = make_project(database_url, named(mail.handler, NEW), named(mail.handler, OLD))
    with pytest.raises(ConfigInvalid, match="names of one handler"):
        await settle(reused)


async def test_people_see_the_current_names_and_may_type_former_ones(
    database_url: str, ledger: Reader
) -> None:
    old = make_project(database_url, named(fail, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    after = make_config(make_route("payments", formerly=("stripe",)))
    new = make_project(database_url, named(fail, NEW, (OLD,), route="payments"), config=after)
    await settle(new)
    async with desk_of(new) as desk:
        for route, handler in (("stripe", OLD), ("payments", NEW), ("stripe", NEW)):
            [dead] = (await desk.ask(DEAD, DeadParams(route=route, handler=handler)))["items"]
            assert (dead["route"], dead["handler"]) == ("payments", NEW)
            [event] = (await desk.ask(EVENTS, EventsParams(route=route, handler=handler)))["items"]
            assert event["route"] == "payments"
            [shown] = await desk.ask(SHOW, ShowParams(id="evt_1", route=route, handler=handler))
            assert [d["handler"] for d in shown["deliveries"]] == [NEW]
            assert shown["route"] == "payments"
        [other] = await desk.ask(SHOW, ShowParams(id="evt_1", handler=NEWEST))
        assert other["deliveries"] == []
        await desk.ask(PAUSE, PauseParams(route="payments", handler=OLD, reason="a test"))
        [pause] = await desk.ask(PAUSES, PausesParams())
        assert (pause["route"], pause["handler"]) == ("payments", NEW)
        status = await desk.ask(STATUS, StatusParams())
        assert [(h.route, h.handler) for h in status.handlers] == [("payments", NEW)]
        assert [route.route for route in status.routes] == ["payments"]
        assert any(NEW in found.text for found in status.attention)
        assert OLD not in str(status)
    assert await ledger.row("select route, handler from gateway.pauses") == {
        "route": "stripe",
        "handler": OLD,
    }


async def spool_and_claim(
    directory: Path, spooled_by: Project, claimed_by: Project, claim: Claim
) -> bytes:
    """An event that is spooled while the ledger is away, and claimed when it is back, by a `serve`
    that has started meanwhile. Returns what was on the disk."""
    guessed = spooled_by.identified(guess_names(spooled_by.declared_names()))
    keeping = Spool(
        directory,
        max_bytes=2**20,
        claim=_away,
        encryption=vault_of(guessed.config, guessed.ring),
    )
    await keeping.start()
    handlers = guessed.names.handlers
    await keeping.keep(  # as a route of this process makes it
        claim._replace(
            route=guessed.names.routes.identity(claim.route),
            handlers=tuple(map(handlers.identity, claim.handlers)),
            order_keys={handlers.identity(h): k for h, k in claim.order_keys.items()},
        )
    )
    written = b"".join([file.read_bytes() for file in _files(directory)])
    await keeping.stop()
    url = claimed_by.settings.database_url
    assert url is not None
    guessed = claimed_by.identified(guess_names(claimed_by.declared_names()))
    codec = ResolvingCodec(guessed)
    claimer = Claimer(url.get_secret_value(), on_accepted=lambda _: None, codec=codec)
    draining = Spool(directory, max_bytes=2**20, claim=claimer.claim, encryption=codec.encryption)
    await claimer.start()
    await draining.start()
    await draining.wait_empty()
    await draining.stop()
    await claimer.stop()
    return written


def _files(directory: Path) -> list[Path]:
    return [file for file in directory.iterdir() if file.is_file()]


async def _away(_: Claim) -> Any:
    raise StorageUnavailable("Postgres is away")


async def test_a_spooled_event_is_claimed_under_the_identity_that_only_the_ledger_knows(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    """The middle of a chain, and its `formerly`, are gone from the code, and `serve` starts without
    the ledger."""
    seen: list[bytes] = []

    async def look(event: Event, ctx: Context) -> None:
        seen.append(event.body)

    def project(
        route: str, handler: str, former: tuple[str, ...], formers: tuple[str, ...]
    ) -> Project:
        flow: dict[str, Any] = {"order_by": KeyPath.parse("customer")}
        return make_project(
            database_url,
            named(look, handler, formers, route=route, **flow),
            config=make_config(make_route(route, encrypt=True, formerly=former)),
            ring=KEYS,
        )

    first = project("stripe", OLD, (), ())
    await claim(first, "evt_1", body=b'{"customer": "cus_1"}', order_keys={OLD: "cus_1"})
    await settle(project("payments", NEW, ("stripe",), (OLD,)))
    last = project("money", NEWEST, ("payments",), (NEW,))
    body = b'{"customer": "cus_1", "n": "of nobody else"}'
    spooled = make_claim("evt_2", route="money", handlers=[NEWEST], body=body)
    written = await spool_and_claim(
        tmp_path, last, last, spooled._replace(order_keys={NEWEST: "cus_1"})
    )
    assert b"of nobody else" not in written
    assert b"cus_1" not in written
    rows = await ledger.rows("select route, handler, order_key from gateway.deliveries")
    assert {(row["route"], row["handler"]) for row in rows} == {("stripe", OLD)}
    assert len({row["order_key"] for row in rows}) == 1
    await run_all(last, ledger)
    assert seen == [b'{"customer": "cus_1"}', body]


async def test_what_was_encrypted_on_the_disk_stays_so_when_its_route_is_gone(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    before = make_project(
        database_url, config=make_config(make_route("stripe", encrypt=True)), ring=KEYS
    )
    after = make_project(database_url, config=make_config(make_route("other")), ring=KEYS)
    await spool_and_claim(tmp_path, before, after, make_claim("evt_1", handlers=[]))
    assert await ledger.rows("select key_id from gateway.payloads") == [{"key_id": KEYS.first}]


async def test_a_serve_that_started_without_the_ledger_refuses_two_histories_when_it_is_back(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    for name, id in ((OLD, "evt_1"), (NEW, "evt_2")):
        project = make_project(database_url, named(mail.handler, name))
        await claim(project, id)
        await run_all(project, ledger)
    both = make_project(database_url, named(mail.handler, NEW, (OLD,)))
    codec = ResolvingCodec(both.identified(guess_names(both.declared_names())))
    connection = await connect(database_url, name="test")
    try:
        with pytest.raises(StorageUnavailable, match="cannot be merged"):
            await codec.prepare(connection)
    finally:
        await connection.close()


async def test_handlers_that_are_gone_are_found_unless_they_were_renamed(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    connection = await connect(database_url, name="test")
    try:
        for project, lost in (
            (old, []),
            (make_project(database_url, named(mail.handler, NEW)), [OLD]),
            (make_project(database_url, named(mail.handler, NEW, (OLD,))), []),
        ):
            names = await settle(project, keep=False)
            registry = project.identified(names).registry
            assert await find_lost_handlers(connection, registry) == lost
    finally:
        await connection.close()


async def test_processes_that_start_at_once_agree_on_one_identity(
    database_url: str, ledger: Reader
) -> None:
    mail = Mail()
    old = make_project(database_url, named(mail.handler, OLD))
    await claim(old, "evt_1")
    await run_all(old, ledger)
    new = make_project(database_url, named(mail.handler, NEW, (OLD,)))
    found = await asyncio.gather(
        *(settle(new) for _ in range(10)), *(settle(old) for _ in range(5))
    )
    assert {names.handlers.identity(NEW) for names in found[:10]} == {OLD}
    rows = await ledger.rows("select distinct identity from gateway.names")
    assert rows == [{"identity": OLD}]


async def test_handlers_publish_to_a_renamed_queue_under_either_name(
    database_url: str, ledger: Reader
) -> None:
    took: list[tuple[str, str, str]] = []

    async def send(event: Event, ctx: Context) -> None:
        for queue in ("emails", "mail"):
            await ctx.publish(queue, {"to": event.id}, key=f"welcome {event.id}")

    async def take(event: Event, ctx: Context) -> None:
        took.append((event.route, event.type, event.id))

    queue = make_route("mail", provider=PROVIDERS["publish"], formerly=("emails",))
    project = make_project(
        database_url,
        named(send, "handlers.users.welcome"),
        named(take, "handlers.mail.send", route="mail"),
        config=make_config(make_route(), queue),
    )
    async with claiming_as(project) as claimer:
        await claimer.claim(make_claim("evt_1", handlers=["handlers.users.welcome"]))
    async with working(database_url, *project.registry.subscriptions, config=project.config):
        await until(lambda: len(took) == 1)
        await until(lambda: _settled(ledger))
    assert took == [("mail", "mail", "welcome evt_1")]
    routes = await ledger.rows("select distinct route from gateway.processed_events order by route")
    assert [row["route"] for row in routes] == ["emails", "stripe"]
