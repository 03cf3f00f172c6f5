"""Handlers on a real Postgres: each way to end, and what the ledger says of it."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from gateway import Context, Defer, Event, Reject, Retry
from gateway.base.model import Backoff, Outcome, RetryPolicy, Status
from gateway.ledger.connection import QUERIES, Connection, Opener, connect
from gateway.ledger.deliveries import Settlement, lease_due, reap, settle
from gateway.worker.policy import AFTER_CONFLICT
from gateway.worker.sweeper import Sweeper
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.pgbouncer import needs_own_session
from tests.support.waiting import until
from tests.support.workers import (
    Function,
    count,
    is_stopping,
    looked_again,
    subscribe,
    swept,
    working,
)

LEASES_EXPIRE = """
with late as (update gateway.workers set held_until = now() - interval '1 s')
update gateway.deliveries set leased_until = now() - interval '1 s' where status = 'running'
"""
"""As if no worker had sent a heartbeat for a while."""

SECOND = timedelta(seconds=1)
HANDLER = ("stripe", "handlers.count")

AS_IF_IT_WERE_LATER = """
create function later() returns timestamptz language sql as $$ select now() + interval '10 min' $$;
insert into gateway.workers (id, host, pid, handlers, seen_at)
values (gen_random_uuid(), 'another', 1, '{}', later());
update gateway.deliveries set created_at = later(), due_at = later() where event_id = 'evt_0';
update gateway.deliveries set due_at = later() + interval '1 s', runs = 1, attempts = 1
where event_id = 'evt_1';
insert into gateway.attempts
select id, 1, later(), later(), 'retry', 'it failed' from gateway.deliveries
where event_id = 'evt_1';
update gateway.deliveries
set status = 'running', runs = 1, lease_token = gen_random_uuid(), leased_at = later(),
    leased_until = later()
where event_id = 'evt_2';
"""
"""One was claimed, one has failed, and one was leased by a worker that is gone."""


async def run_one(
    url: str, ledger: Reader, handler: Function, *, status: str, **options: Any
) -> dict[str, Any]:
    """Claims one event, runs the handler until the delivery has this status, returns the row."""
    await claim_all(url, [make_claim("evt_1")])

    async def reached() -> bool:
        return bool((await ledger.delivery())["status"] == status)

    async with working(url, subscribe(handler, **options)):
        await until(reached)
    return await ledger.delivery()


async def test_a_handlers_write_and_its_completion_are_one_commit(
    database_url: str, ledger: Reader
) -> None:
    delivery = await run_one(database_url, ledger, count, status="done")
    assert (delivery["attempts"], delivery["error"]) == (1, None)
    assert delivery["finished_at"] is not None
    effect = await ledger.value("select xmin::text from public.effects")
    assert effect == await ledger.value("select xmin::text from gateway.deliveries")
    assert effect == await ledger.value("select xmin::text from gateway.attempts")
    assert await ledger.outcomes() == ["done"]


async def test_a_handler_that_never_touches_the_database_is_done_too(
    database_url: str, ledger: Reader
) -> None:
    seen: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    await run_one(database_url, ledger, handler, status="done")
    assert seen == ["evt_1"]
    assert await ledger.outcomes() == ["done"]


async def test_ctx_db_has_no_method_that_is_not_for_handlers(
    database_url: str, ledger: Reader
) -> None:
    seen: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        seen.extend(name for name in dir(ctx.db) if not name.startswith("_"))

    await run_one(database_url, ledger, handler, status="done")
    statements = ["execute", "executemany", "fetch", "fetchrow", "fetchval"]
    assert seen == [*statements, "transaction"]


async def test_a_handler_that_fails_twice_and_then_succeeds_has_one_effect(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert delivery["attempts"] == 3
    assert delivery["error"] is None
    assert await ledger.outcomes() == ["retry", "retry", "done"]
    assert await ledger.effects() == 1


async def test_a_handler_that_always_fails_is_dead_with_its_last_error(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        raise ValueError(f"attempt {ctx.attempt}")

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert (delivery["attempts"], delivery["error"]) == (3, "ValueError: attempt 3")
    assert delivery["finished_at"] is not None
    assert await ledger.outcomes() == ["retry", "retry", "dead"]
    assert await ledger.effects() == 0
    errors = await ledger.rows("select error from gateway.attempts order by number")
    assert "attempt 1" in errors[0]["error"]
    assert "test_run.py" in errors[0]["error"]


async def test_a_rejected_delivery_is_dead_at_once(database_url: str, ledger: Reader) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        raise Reject("no such customer")

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert (delivery["attempts"], delivery["error"]) == (1, "REJECTED: no such customer")


async def test_a_retry_comes_after_the_time_that_was_asked_for_and_burns_an_attempt(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("not yet", after=0.3)

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert delivery["attempts"] == 2
    first, second = await ledger.rows("select * from gateway.attempts order by number")
    assert second["started_at"] - first["finished_at"] >= timedelta(seconds=0.3)


async def test_a_deferral_burns_no_attempt(database_url: str, ledger: Reader) -> None:
    runs: list[int] = []

    async def handler(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        if len(runs) <= 5:
            raise Defer("busy", after=0.01)

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert runs == [1] * 6
    assert delivery["attempts"] == 1
    assert await ledger.outcomes() == ["deferred"] * 5 + ["done"]


async def test_deferrals_without_end_leave_a_bounded_record(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.deliveries.KEPT_IN_VAIN", 5)
    runs: list[int] = []

    async def handler(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            raise Retry("not yet", after=0)
        if len(runs) <= 20:
            raise Defer("busy", after=0)

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert (delivery["attempts"], delivery["runs"]) == (2, 21)
    assert await ledger.outcomes() == ["retry"] + ["deferred"] * 5 + ["done"]


async def test_retry_after_of_a_busy_service_is_a_deferral(
    database_url: str, ledger: Reader
) -> None:
    runs: list[int] = []

    async def handler(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        if len(runs) < 3:
            answer = httpx.Response(
                503, headers={"retry-after": "0"}, request=httpx.Request("GET", "http://service")
            )
            answer.raise_for_status()

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert (delivery["attempts"], runs) == (1, [1, 1, 1])


async def test_a_retry_after_that_overflows_is_a_retry_and_no_end_of_the_run(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        if ctx.attempt == 1:
            asked = {"retry-after": "Tue, 17 Nov 2026 02:00:00 +99999999999999"}
            request = httpx.Request("GET", "http://service")
            httpx.Response(503, headers=asked, request=request).raise_for_status()

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert delivery["attempts"] == 2
    assert await ledger.outcomes() == ["retry", "done"]


async def test_a_handler_over_its_timeout_is_stopped_and_retried(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    delivery = await run_one(database_url, ledger, handler, status="done", timeout=2 * SECOND)
    assert delivery["attempts"] == 2
    error = await ledger.value("select error from gateway.attempts where number = 1")
    assert error.startswith("TIMEOUT: the handler ran longer than 2 s")
    assert await ledger.effects() == 1


async def test_a_handler_that_swallows_its_cancellation_cannot_write_any_more(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.worker.execution.STOP_S", 0.1)
    refused: list[Exception] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        if began.is_set():
            return
        await count(event, ctx)  # on a slow machine it may take two attempts to come past this
        began.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        try:
            await count(event, ctx)
        except Exception as error:
            refused.append(error)

    await run_one(database_url, ledger, handler, status="done", timeout=SECOND)
    go_on.set()
    await until(lambda: refused)
    assert "closed" in str(refused[0])
    assert await ledger.effects() == 0


async def test_a_stray_task_gets_an_error_and_not_another_deliverys_connection(
    database_url: str, ledger: Reader
) -> None:
    strays: list[asyncio.Task[None]] = []
    settled = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)

        async def stray() -> None:
            await settled.wait()
            await count(event, ctx)

        strays.append(asyncio.create_task(stray()))

    await run_one(database_url, ledger, handler, status="done")
    settled.set()
    with pytest.raises(RuntimeError, match=r"ctx\.db is closed"):
        await strays[0]
    assert await ledger.effects() == 1


async def test_calls_from_several_tasks_take_turns(database_url: str, ledger: Reader) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await asyncio.gather(*(count(event, ctx) for _ in range(5)))

    await run_one(database_url, ledger, handler, status="done")
    assert await ledger.effects() == 5


async def test_a_savepoint_undoes_only_what_is_inside(database_url: str, ledger: Reader) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        with suppress(asyncpg.NotNullViolationError):
            async with ctx.db.transaction():
                await count(event, ctx)
                await ctx.db.execute("insert into effects (event_id) values (null)")
        async with ctx.db.transaction():
            await count(event, ctx)

    await run_one(database_url, ledger, handler, status="done")
    assert await ledger.effects() == 2


async def test_a_swallowed_database_error_is_not_taken_for_success(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        with pytest.raises(asyncpg.UndefinedTableError):
            await ctx.db.execute("select * from no_such_table")

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert "InFailedSQLTransactionError" in delivery["error"]
    assert await ledger.effects() == 0


async def test_sys_exit_in_a_handler_does_not_end_the_worker(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        raise SystemExit(3)

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert "sys.exit(3)" in delivery["error"]


async def test_an_error_with_hostile_text_is_kept(database_url: str, ledger: Reader) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        raise Reject("nul \0 and surrogate \ud800 and " + "x" * 100_000)

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert delivery["error"].startswith("REJECTED: nul \\0 and surrogate \\ud800")
    assert len(delivery["error"]) < 10_000


async def test_deadlocks_and_serialization_failures_burn_no_attempt(
    database_url: str, ledger: Reader
) -> None:
    runs: list[int] = []

    async def handler(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        await count(event, ctx)
        if len(runs) < 3:
            code = "40P01" if len(runs) == 1 else "40001"
            await ctx.db.execute(f"do $$ begin raise exception using errcode = '{code}'; end $$")

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert (runs, delivery["attempts"], delivery["losses"]) == ([1, 1, 1], 1, 0)
    assert await ledger.outcomes() == ["lost", "lost", "done"]
    assert await ledger.effects() == 1


@needs_own_session
async def test_a_server_that_takes_no_writes_any_more_burns_no_attempt(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby, or a database that is read only for a while: the session is not used again.

    Only sessions of handlers are read only: a worker that cannot lease would never run again.
    """
    sessions: list[int] = []
    read_only = iter(("off", "on", "off"))
    open_one = Opener.open

    async def opening(opener: Opener) -> Connection:
        if opener._name == "gateway worker handlers":
            settings = {"default_transaction_read_only": next(read_only)}
            monkeypatch.setattr(opener, "_settings", {**opener._settings, **settings})
        return await open_one(opener)

    async def handler(event: Event, ctx: Context) -> None:
        sessions.append(await ctx.db.fetchval("select pg_backend_pid()"))
        if len(sessions) == 1:  # the next session begins read only
            await ledger.run("select pg_terminate_backend($1)", sessions[0])
        try:
            await count(event, ctx)
        except Exception as error:
            raise ValueError("what the handler makes of it") from error

    monkeypatch.setattr(Opener, "open", opening)
    delivery = await run_one(database_url, ledger, handler, status="done")
    assert (delivery["attempts"], await ledger.outcomes()) == (1, ["lost", "lost", "done"])
    assert len(set(sessions)) == 3
    assert await ledger.effects() == 1


async def test_a_run_that_gets_no_connection_is_no_loss(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may hold all connections of the server for longer than ten runs take."""
    refused = 0
    open_one = Opener.open

    async def refusing(opener: Opener) -> Connection:
        nonlocal refused
        if opener._name == "gateway worker handlers" and refused < 12:
            refused += 1
            raise asyncpg.TooManyConnectionsError("sorry, too many clients already")
        return await open_one(opener)

    monkeypatch.setattr(Opener, "open", refusing)
    monkeypatch.setattr("gateway.worker.policy.AFTER_LOSS", timedelta())
    delivery = await run_one(database_url, ledger, count, status="done")
    assert (delivery["attempts"], delivery["losses"]) == (1, 0)
    assert await ledger.outcomes() == ["released"] * 12 + ["done"]
    assert await ledger.effects() == 1


async def test_errors_that_are_causes_of_each_other_do_not_stop_the_worker(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        try:
            raise KeyError("first")
        except KeyError as first:
            try:
                raise ValueError("second") from first
            except ValueError as second:
                raise first from second

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert delivery["error"].startswith("KeyError: ")


async def test_a_conflict_in_a_task_group_burns_no_attempt(
    database_url: str, ledger: Reader
) -> None:
    runs: list[int] = []

    async def handler(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        async with asyncio.TaskGroup() as group:
            group.create_task(count(event, ctx))
            if len(runs) == 1:
                conflict = "do $$ begin raise exception using errcode = '40P01'; end $$"
                group.create_task(ctx.db.execute(conflict))

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert (delivery["attempts"], await ledger.outcomes()) == (1, ["lost", "done"])


async def test_the_tenth_conflict_in_a_row_burns_an_attempt(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict does not kill a delivery: its retry policy decides, and its error is shown."""
    quick = timedelta(milliseconds=10)
    monkeypatch.setattr(
        "gateway.worker.policy.AFTER_CONFLICT", replace(AFTER_CONFLICT, base=quick, cap=quick)
    )

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.db.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    two = RetryPolicy(attempts=2, backoff=Backoff.FIXED, base=quick, cap=quick)
    delivery = await run_one(database_url, ledger, handler, status="dead", retry=two)
    assert delivery["error"].startswith("SerializationError: ")
    assert (delivery["attempts"], delivery["losses"]) == (2, 0)
    assert await ledger.outcomes() == ["lost"] * 9 + ["retry"] + ["lost"] * 9 + ["dead"]


async def test_conflicts_do_not_count_as_losses(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine conflicts in a row and then a lost connection are one loss, and not the tenth."""
    quick = timedelta(milliseconds=10)
    monkeypatch.setattr(
        "gateway.worker.policy.AFTER_CONFLICT", replace(AFTER_CONFLICT, base=quick, cap=quick)
    )
    monkeypatch.setattr("gateway.worker.policy.AFTER_LOSS", timedelta())
    runs = 0

    async def handler(event: Event, ctx: Context) -> None:
        nonlocal runs
        runs += 1
        await count(event, ctx)
        if runs < 10:
            await ctx.db.execute("do $$ begin raise exception using errcode = '40001'; end $$")
        if runs == 10:
            await ctx.db.execute("select pg_terminate_backend(pg_backend_pid())")

    delivery = await run_one(database_url, ledger, handler, status="done")
    assert await ledger.outcomes() == ["lost"] * 10 + ["done"]
    assert (delivery["losses"], delivery["conflicts"]) == (0, 0)
    assert await ledger.effects() == 1


async def test_conflicts_of_a_suspect_do_not_count_as_losses_while_alone(
    database_url: str, ledger: Reader
) -> None:
    """Nine conflicts, and then its process is lost while it runs alone: that is the first loss."""
    await claim_all(database_url, [make_claim("evt_1")])
    await ledger.run("update gateway.deliveries set workers_lost = 2")
    connection = await connect(database_url, name="test")
    for _ in range(AFTER_CONFLICT.attempts - 1):
        [lease] = await lease_due(connection, 1, [HANDLER], SECOND, suspects=True)
        conflict = Settlement(status=Status.PENDING, outcome=Outcome.LOST, is_conflict=True)
        await settle(connection, lease, conflict)
    await lease_due(connection, 1, [HANDLER], -SECOND, suspects=True)
    await reap(connection, 10, timedelta())
    await connection.close()
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["losses"], delivery["conflicts"]) == ("pending", 1, 9)


async def test_a_cut_connection_burns_no_attempt_and_leaves_one_effect(
    database_url: str, ledger: Reader
) -> None:
    runs: list[int] = []

    async def handler(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        await count(event, ctx)
        if len(runs) < 4:
            pid = await ctx.db.fetchval("select pg_backend_pid()")
            await ledger.run("select pg_terminate_backend($1)", pid)

    one = RetryPolicy(attempts=1, backoff=Backoff.FIXED, base=SECOND, cap=SECOND)
    delivery = await run_one(database_url, ledger, handler, status="done", retry=one)
    assert (runs, delivery["attempts"]) == ([1] * 4, 1)
    assert await ledger.outcomes() == ["lost"] * 3 + ["done"]
    assert await ledger.effects() == 1


async def test_a_handler_that_ends_its_own_connection_does_not_loop_for_ever(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.worker.policy.AFTER_LOSS", timedelta(milliseconds=10))

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.db.execute("select pg_terminate_backend(pg_backend_pid())")

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert delivery["error"].startswith("WORKER_LOST: 10 runs in a row were lost")


async def test_a_commit_that_is_never_answered_is_given_up(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a connection that a firewall forgot: nothing comes back, not even an error."""
    from gateway.worker.transaction import DeliveryTransaction

    complete, hung = DeliveryTransaction.complete, asyncio.Event()

    async def hang_once(self: DeliveryTransaction, lease: Any, *, chain: bool) -> None:
        if not hung.is_set():
            hung.set()
            assert self._session is not None
            await self._session.connection.execute("select pg_sleep(60)")
        await complete(self, lease, chain=chain)

    monkeypatch.setattr(DeliveryTransaction, "complete", hang_once)
    await run_one(database_url, ledger, count, status="done")
    assert await ledger.outcomes() == ["lost", "done"]
    assert await ledger.effects() == 1


async def test_nothing_of_a_session_reaches_the_next_delivery(
    database_url: str, ledger: Reader
) -> None:
    """A temporary table would shadow the real one, and a role would stay."""
    await ledger.run("create role app_of_the_test superuser")

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.db.execute(
            "insert into effects (event_id, handler) values ($1, current_user)", ""
        )
        await ctx.db.execute("create temp table effects (like public.effects)")
        await ctx.db.execute("set role app_of_the_test")

    claims = [make_claim(f"evt_{n}") for n in range(5)]
    await claim_all(database_url, claims)
    try:
        async with working(database_url, subscribe(handler), concurrency=1):
            await until(lambda: _all_done(ledger, 5))
    finally:
        await ledger.run("drop role app_of_the_test")
    who = await ledger.rows("select handler from public.effects")
    assert [row["handler"] for row in who] == ["gateway"] * 5


async def test_cleaning_up_at_a_shutdown_burns_no_attempt(
    database_url: str, ledger: Reader
) -> None:
    started = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("could not clean up")

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), grace=timedelta(seconds=0.1)):
        await started.wait()
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["attempts"]) == ("pending", 0)
    assert await ledger.outcomes() == ["released"]


async def test_a_handlers_decision_counts_even_after_a_deadlock_that_it_handled(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        with suppress(asyncpg.DeadlockDetectedError):
            async with ctx.db.transaction():
                await ctx.db.execute("do $$ begin raise exception using errcode = '40P01'; end $$")
        raise Reject("no")

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert (delivery["error"], delivery["attempts"]) == ("REJECTED: no", 1)


class Unprintable(Exception):
    """An error of a user's whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("broken")


async def test_an_error_that_cannot_be_printed_is_settled_all_the_same(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        raise Unprintable

    delivery = await run_one(database_url, ledger, handler, status="dead")
    assert delivery["error"] == "Unprintable: (its text cannot be had)"


@pytest.mark.parametrize("signal", [Retry(after=timedelta.max), Defer(after=timedelta.max)])
async def test_an_absurd_delay_is_bounded(
    signal: Exception, database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        raise signal

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler)):
        await until(lambda: ledger.outcomes())
    assert await ledger.value("select due_at < now() + interval '400 days' from gateway.deliveries")


async def test_a_sweep_renews_what_runs_here_before_it_takes_back_what_expired(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage longer than the lease, a live worker's own leases look expired too."""
    monkeypatch.setattr("gateway.worker.runner.BEATS_PER_LEASE", 0.001)
    running, may_end = asyncio.Event(), asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        running.set()
        await may_end.wait()

    async def never(_: Sweeper) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Sweeper, "sweep_forever", never)  # the test sweeps
    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=SECOND) as worker:
        await running.wait()
        # Until then nothing is taken back anyway.
        await until(
            lambda: ledger.value("select pg_postmaster_start_time() < now() - interval '1 s'")
        )
        await ledger.run(LEASES_EXPIRE)
        await worker.sweeper.sweep()
        assert await ledger.statuses() == {"running": 1}
        may_end.set()
        await until(lambda: _is_done(ledger))
    assert await ledger.outcomes() == ["done"]


async def test_an_idle_worker_whose_sweeps_are_late_is_not_removed(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker would remove its row, and its heartbeats would keep no lease alive."""
    monkeypatch.setattr("gateway.worker.runner.BEATS_PER_LEASE", 1000)
    seldom = timedelta(minutes=5)
    async with working(database_url, subscribe(count), lease=seldom, sweep=seldom):
        await until(lambda: ledger.value("select held_until > now() from gateway.workers"))
        other: tuple[Any, ...] = (uuid4(), "host", 1, [], timedelta(0), "0.1.0", False)
        await ledger.rows(QUERIES["alive"], *other)
        assert await ledger.value("select count(*) from gateway.workers") == 2


async def test_a_lease_whose_answer_was_lost_expires_while_its_worker_lives(
    database_url: str, ledger: Reader
) -> None:
    """A connection broke after the commit of a lease: heartbeats keep only what the worker has."""
    running, may_end = asyncio.Event(), asyncio.Event()
    done = "select count(*) from gateway.deliveries where status = 'done'"

    async def handler(event: Event, ctx: Context) -> None:
        if event.id == "evt_1":
            running.set()
            await may_end.wait()

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=SECOND):
        await running.wait()
        async with asyncio.timeout(60):
            lost: list[dict[str, Any]] = []
            while not lost:  # or the worker was faster
                await claim_all(database_url, [make_claim(uuid4().hex)])
                handlers = (["stripe"], ["handlers.count"])
                lost = await ledger.rows(QUERIES["lease_due"], *handlers, 1, SECOND, 1, 1, False)
        claimed = await ledger.value("select count(*) from gateway.deliveries")
        await until(lambda: _equals(ledger, done, claimed - 1))
        may_end.set()
        await until(lambda: _equals(ledger, done, claimed))


async def _equals(ledger: Reader, query: str, expected: int) -> bool:
    return bool(await ledger.value(query) == expected)


async def test_nothing_is_taken_back_while_postgres_has_only_just_come_back(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    lease = QUERIES["lease_due"]
    await ledger.rows(lease, ["stripe"], ["handlers.count"], 1, -SECOND, 1, 1, False)
    assert await ledger.rows(QUERIES["reap"], 1, 10, timedelta(days=3650)) == []
    assert len(await ledger.rows(QUERIES["reap"], 1, 10, timedelta())) == 1


async def test_a_clock_that_is_set_back_delays_nothing(database_url: str, ledger: Reader) -> None:
    """By ten minutes: what was claimed, failed and leased before it would wait for so long."""
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(3)])
    await ledger.run(AS_IF_IT_WERE_LATER)

    async def all_done() -> bool:
        return await ledger.statuses() == {"done": 3}

    async with working(database_url, subscribe(count)):
        await until(all_done)
    assert await ledger.effects() == 3


async def test_a_lease_that_is_on_its_way_at_a_shutdown_is_handed_back(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed, and its answer not here yet: nobody else could run it until it runs out."""
    leased = asyncio.Event()

    async def lease_slowly(*args: Any, **options: Any) -> list[Any]:
        leases = await lease_due(*args, **options)
        if leases:
            leased.set()
            await until(lambda: is_stopping(worker))
        return leases

    monkeypatch.setattr("gateway.worker.intake.lease_due", lease_slowly)
    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(count)) as worker:
        await leased.wait()
    assert (await ledger.delivery())["status"] == "pending"
    assert await ledger.outcomes() == ["released"]


async def test_a_handler_that_ignores_a_graceful_stop_is_handed_back(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not its worker that was lost: a deploy counts against no delivery."""
    monkeypatch.setattr("gateway.worker.runner.STOP_S", 0.1)
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        started.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), grace=timedelta()):
        await started.wait()
    may_end.set()
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["workers_lost"]) == ("pending", 0)
    assert await ledger.outcomes() == ["released"]
    assert await ledger.effects() == 0


async def test_what_was_replayed_before_the_clock_was_set_back_does_not_wait_for_it(
    database_url: str, ledger: Reader
) -> None:
    await run_one(database_url, ledger, count, status="done")
    await ledger.replay((await ledger.delivery())["id"])
    await ledger.run(
        "update gateway.deliveries set due_at = now() + interval '10 min';"
        "update gateway.audit set at = now() + interval '10 min'"
    )
    moved = await ledger.value(QUERIES["set_back"], timedelta(minutes=10), SECOND)
    assert moved == 1
    assert await ledger.value("select due_at <= now() from gateway.deliveries")


async def test_what_waits_for_its_time_is_left_alone_when_the_clock_is_set_back(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    await ledger.run("update gateway.deliveries set due_at = now() + interval '1 h'")
    before = await ledger.delivery()
    assert await ledger.value(QUERIES["set_back"], timedelta(minutes=10), SECOND) == 0
    assert await ledger.delivery() == before


async def test_a_connection_cut_at_the_commit_leaves_exactly_one_effect(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMMIT goes through, its answer gets lost: the run must not be repeated."""
    from gateway.worker.transaction import DeliveryTransaction

    complete = DeliveryTransaction.complete
    cut: list[bool] = []

    async def complete_and_cut(self: DeliveryTransaction, lease: Any, *, chain: bool) -> None:
        session = self._session
        await complete(self, lease, chain=chain)
        if not cut:
            cut.append(True)
            assert session is not None
            session.connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("cut between COMMIT and its answer")

    monkeypatch.setattr(DeliveryTransaction, "complete", complete_and_cut)
    await run_one(database_url, ledger, count, status="done")
    assert cut
    assert await ledger.outcomes() == ["done"]
    assert await ledger.effects() == 1


async def test_a_long_handler_keeps_its_lease(database_url: str, ledger: Reader) -> None:
    may_end = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await may_end.wait()

    await claim_all(database_url, [make_claim("evt_1")])
    seldom = timedelta(minutes=5)
    async with working(database_url, subscribe(handler), lease=SECOND, sweep=seldom):
        await until(lambda: ledger.value("select 1 from gateway.deliveries where runs = 1"))
        async with working(database_url, subscribe(handler), lease=SECOND) as other:
            await until(lambda: ledger.value("select leased_until < now() from gateway.deliveries"))
            await other.sweeper.sweep()
            await looked_again(other)
            may_end.set()
            await until(lambda: _is_done(ledger))
    assert await ledger.outcomes() == ["done"]
    assert await ledger.effects() == 1


async def _is_done(ledger: Reader) -> bool:
    return bool((await ledger.delivery())["status"] == "done")


async def test_a_run_whose_lease_was_taken_over_leaves_no_trace(
    database_url: str, ledger: Reader
) -> None:
    runs: list[str] = []
    first_may_end = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        runs.append("run")
        await count(event, ctx)
        if len(runs) == 1:
            await _take_back(ledger)
            await first_may_end.wait()

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=60 * SECOND):
        await until(lambda: _is_done(ledger))
        first_may_end.set()
        await until(lambda: len(runs) == 2)
    assert await ledger.outcomes() == ["lost", "done"]
    assert await ledger.effects() == 1


async def _take_back(ledger: Reader) -> None:
    """As another worker's sweep does once the lease has run out."""
    token = "select lease_token from gateway.deliveries"
    ours = await ledger.value(token)
    while await ledger.value(token) == ours:  # its own worker may send a heartbeat in between
        await ledger.run(LEASES_EXPIRE)
        await ledger.rows(QUERIES["reap"], 1, 10, timedelta())


async def test_a_heartbeat_that_finds_the_lease_lost_cancels_the_handler(
    database_url: str, ledger: Reader
) -> None:
    cancelled = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        if cancelled.is_set():
            return
        await ledger.run("update gateway.deliveries set lease_token = gen_random_uuid()")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=SECOND):
        await cancelled.wait()
        await until(lambda: _is_done(ledger))


async def test_a_shutdown_finishes_what_runs_within_the_grace_time(
    database_url: str, ledger: Reader
) -> None:
    started = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        started.set()
        await until(lambda: is_stopping(worker))
        await count(event, ctx)

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), grace=timedelta(hours=1)) as worker:
        await started.wait()
    assert await ledger.outcomes() == ["done"]
    assert await ledger.effects() == 1


async def test_a_shutdown_hands_back_what_does_not_finish_and_burns_no_attempt(
    database_url: str, ledger: Reader
) -> None:
    started = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        started.set()
        await asyncio.Event().wait()

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), grace=timedelta(seconds=0.1)):
        await started.wait()
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["attempts"], delivery["losses"]) == ("pending", 0, 0)
    assert await ledger.outcomes() == ["released"]
    async with working(database_url, subscribe(count)):
        await until(lambda: _is_done(ledger))
    assert await ledger.effects() == 1


async def test_a_second_signal_ends_the_grace_time(database_url: str, ledger: Reader) -> None:
    started = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), grace=timedelta(hours=1)) as worker:
        await started.wait()
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: is_stopping(worker))
        worker.hurry()
        await stopping
        assert await ledger.statuses() == {"pending": 1}


async def test_a_worker_leases_only_handlers_that_it_has(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim("evt_1", handlers=["handlers.count", "gone"])])
    async with working(database_url, subscribe(count)) as worker:
        await until(lambda: ledger.effects())
        await swept(ledger)
        await looked_again(worker)
    found = await ledger.rows("select handler, status from gateway.deliveries order by handler")
    assert found == [
        {"handler": "gone", "status": "pending"},
        {"handler": "handlers.count", "status": "done"},
    ]


async def test_ctx_db_does_not_look_into_the_gateways_schema(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        found = await ctx.db.fetchval("select to_regclass('deliveries')::text")
        await ctx.db.execute("insert into effects (event_id, handler) values ($1, '')", str(found))

    await run_one(database_url, ledger, handler, status="done")
    assert await ledger.value("select event_id from public.effects") == "None"


async def test_no_more_deliveries_run_at_once_than_there_are_slots(
    database_url: str, ledger: Reader
) -> None:
    running, most = 0, 0

    async def handler(event: Event, ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    await claim_all(database_url, [make_claim() for _ in range(40)])
    async with working(database_url, subscribe(handler), concurrency=4):
        await until(lambda: _all_done(ledger, 40))
    assert most == 4


async def _all_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


async def test_a_worker_with_slow_handlers_leases_nothing_ahead(
    database_url: str, ledger: Reader
) -> None:
    may_end = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        await may_end.wait()

    await claim_all(database_url, [make_claim() for _ in range(20)])
    async with working(database_url, subscribe(handler), concurrency=3) as worker:
        await until(lambda: _are_running(ledger, 3))
        await looked_again(worker)
        assert await ledger.statuses() == {"running": 3, "pending": 17}
        may_end.set()
        await until(lambda: _all_done(ledger, 20))


async def test_what_was_leased_ahead_and_finds_no_slot_goes_to_another_worker(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast handlers, so that work is leased ahead, and then none that ends."""
    monkeypatch.setattr("gateway.worker.runner.AHEAD", 10 * SECOND)  # however slow this machine is
    runs: list[str] = []
    may_end = asyncio.Event()

    async def clogged(event: Event, ctx: Context) -> None:
        runs.append(event.id)
        if len(runs) > 300:
            await may_end.wait()

    await claim_all(database_url, [make_claim() for _ in range(400)])
    times: dict[str, Any] = {"lease": 5 * SECOND, "grace": SECOND}
    patient = subscribe(clogged, timeout=timedelta(hours=1))
    async with working(database_url, patient, concurrency=8, **times):
        await until(lambda: len(runs) == 308)
        assert (await ledger.statuses())["running"] > 8, "nothing was leased ahead"
        monkeypatch.undo()  # else it would lease again what it hands back
        async with working(database_url, subscribe(count), **times):
            await until(lambda: _statuses_are(ledger, {"done": 392, "running": 8}))
        may_end.set()
        await until(lambda: _all_done(ledger, 400))
    assert len(runs) == 308
    assert set(await ledger.outcomes()) == {"done", "released"}, "none was lost meanwhile"


async def test_what_was_leased_ahead_is_handed_back_at_a_shutdown(
    database_url: str, ledger: Reader
) -> None:
    runs: list[str] = []

    async def clogged(event: Event, ctx: Context) -> None:
        runs.append(event.id)
        if len(runs) > 300:
            await asyncio.Event().wait()

    await claim_all(database_url, [make_claim() for _ in range(400)])
    async with working(database_url, subscribe(clogged), concurrency=8, grace=SECOND / 10):
        await until(lambda: len(runs) == 308)
    assert await ledger.statuses() == {"done": 300, "pending": 100}
    assert len(runs) == 308, "what was handed back was not begun"


async def test_a_pace_that_falls_is_no_trouble(
    database_url: str, ledger: Reader, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await asyncio.sleep(0.2 if int(event.id.removeprefix("evt_")) > 200 else 0)

    await claim_all(database_url, [make_claim(f"evt_{n:03}") for n in range(260)])
    async with working(database_url, subscribe(handler), concurrency=8):
        await until(lambda: _all_done(ledger, 260))
    assert "ledger_unreachable" not in "".join(capfd.readouterr())


async def test_a_batch_too_big_to_arrive_in_time_is_taken_in_smaller_ones(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Big bodies over a slow way to Postgres: the same batch again would never arrive."""
    monkeypatch.setattr("gateway.worker.runner.TAKE_AGAIN_S", 0.01)
    asked: list[int] = []

    async def slow(ledger: Any, limit: int, *rest: Any, **options: Any) -> Any:
        asked.append(limit)
        if limit > 1:
            raise TimeoutError
        return await lease_due(ledger, limit, *rest, **options)

    monkeypatch.setattr("gateway.worker.intake.lease_due", slow)
    await claim_all(database_url, [make_claim() for _ in range(5)])
    async with working(database_url, subscribe(count)):
        await until(lambda: _all_done(ledger, 5))
    assert asked[:5] == [16, 8, 4, 2, 1]


async def test_old_work_is_not_overtaken_by_new(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog older than the hints: everything is taken oldest first."""
    # What is handed back for want of a slot, as after a stall of the machine, falls due anew.
    monkeypatch.setattr("gateway.worker.runner.LONGEST_AHEAD_S", 3600.0)
    order: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        order.append(event.id)

    old = [make_claim(f"old_{n:03}") for n in range(50)]
    await claim_all(database_url, old)
    await ledger.run("update gateway.deliveries set due_at = now() - interval '1 hour'")
    new = await claim_all(database_url, [make_claim(f"new_{n:03}") for n in range(50)])
    async with working(database_url, subscribe(handler), concurrency=2) as worker:
        worker.hint([i for answer in new for i in answer.delivery_ids])
        await until(lambda: len(order) == 100)
    assert all(event_id.startswith("old") for event_id in order[:50])


async def test_a_hint_starts_work_without_waiting_for_the_sweep(
    database_url: str, ledger: Reader
) -> None:
    async with working(database_url, subscribe(count), sweep=timedelta(minutes=30)) as worker:
        await until(lambda: worker.runner.asked_at)  # it looks only once
        [answer] = await claim_all(database_url, [make_claim("evt_1")])
        worker.hint(answer.delivery_ids)
        await until(lambda: _is_done(ledger))


async def test_a_hint_for_what_is_done_or_unknown_does_nothing(
    database_url: str, ledger: Reader
) -> None:
    [answer] = await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(count)) as worker:
        await until(lambda: _is_done(ledger))
        worker.hint([*answer.delivery_ids, 10**12])
        await looked_again(worker)
    assert await ledger.effects() == 1


async def test_two_handlers_of_one_event_stand_and_fall_apart(
    database_url: str, ledger: Reader
) -> None:
    async def fails(event: Event, ctx: Context) -> None:
        raise Reject("no")

    await claim_all(database_url, [make_claim("evt_1", handlers=["good", "bad"])])
    async with working(database_url, subscribe(count, name="good"), subscribe(fails, name="bad")):
        await until(lambda: _both_ended(ledger))
    assert await ledger.statuses() == {"done": 1, "dead": 1}


async def _both_ended(ledger: Reader) -> bool:
    return set(await ledger.statuses()) == {"done", "dead"}


@pytest.mark.parametrize("attempt", [1, 2, 7])
def test_backoff_grows_and_is_capped_and_jittered(attempt: int) -> None:
    from gateway.worker.policy import backoff

    policy = RetryPolicy(attempts=9, base=SECOND, cap=20 * SECOND)
    full = min(2 ** (attempt - 1), 20)
    waits = [backoff(policy, attempt).total_seconds() for _ in range(200)]
    assert full / 2 <= min(waits) < max(waits) <= full


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("120", timedelta(seconds=120)),
        ("Mon, 16 Nov 2026 03:00:30 GMT", timedelta(seconds=30)),
        ("Mon, 16 Nov 2026 02:00:00 GMT", timedelta()),
        ("99999999999999999999", timedelta(seconds=999_999_999)),
        ("soon", None),
        ("", None),
        ("-5", None),
        (None, None),
    ],
)
def test_retry_after_is_read_in_both_forms(header: str | None, expected: timedelta | None) -> None:
    from gateway.worker.policy import retry_after

    assert retry_after(header, datetime(2026, 11, 16, 3, 0, tzinfo=UTC)) == expected


async def _are_running(ledger: Reader, count: int) -> bool:
    return (await ledger.statuses()).get("running", 0) == count


async def _statuses_are(ledger: Reader, statuses: dict[str, int]) -> bool:
    return await ledger.statuses() == statuses


NOTED_COMMITS = """
create table public.commits (at text, setting text);
create function public.note() returns trigger language plpgsql as $$
begin
    insert into public.commits values (tg_table_name, current_setting('synchronous_commit'));
    return null;
end
$$;
create trigger note after insert on gateway.processed_events
    for each row execute function public.note();
create trigger note after insert on gateway.effects for each row execute function public.note();
create trigger note after insert on public.effects for each row execute function public.note();
"""


async def test_commits_wait_for_the_disk_whatever_the_database_says(
    database_url: str, ledger: Reader
) -> None:
    """Claims, what a handler writes, and what `ctx.once` begins."""
    name = await ledger.value("select current_database()")
    await ledger.run(f'alter database "{name}" set synchronous_commit = off')
    await ledger.run(NOTED_COMMITS)

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.once("call", lambda: None)
        await count(event, ctx)

    await run_one(database_url, ledger, handler, status="done")
    found = await ledger.rows("select at, setting from public.commits order by at")
    assert [(row["at"], row["setting"]) for row in found] == [
        ("effects", "on"),
        ("effects", "on"),
        ("processed_events", "on"),
    ]


async def test_what_has_lost_its_payload_is_dead_and_not_run_with_nothing(
    database_url: str, ledger: Reader
) -> None:
    """As it never should: nobody may take an empty body for the one that was received."""
    seen: list[bytes] = []

    async def take(event: Event, ctx: Context) -> None:
        seen.append(event.body)

    await claim_all(database_url, [make_claim("evt_1")])
    await ledger.run("delete from gateway.payloads")

    async def is_ended() -> bool:
        return bool((await ledger.delivery())["status"] in {"done", "dead"})

    async with working(database_url, subscribe(take)):
        await until(is_ended)
    delivery = await ledger.delivery()
    assert (delivery["status"], seen) == ("dead", [])
    assert delivery["error"].startswith("PayloadGone: its payload is gone")
