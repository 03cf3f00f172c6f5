"""The state machine, explored: interleaved actors on a real Postgres, checked after every step."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar, cast
from uuid import UUID, uuid4

import asyncpg
import pytest
from asyncpg.transaction import Transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gateway.base.errors import CommandFailed, LeaseLost, TransitionRefused
from gateway.base.model import MOVES, Lease, Outcome, RepeatPolicy, Retention, Status
from gateway.ledger import claims as claims_module
from gateway.ledger.claims import Claim, Claimed, Claimer, ClaimVerdict
from gateway.ledger.connection import LOST, Connection, Pooled, connect
from gateway.ledger.deliveries import (
    DONE,
    Settlement,
    discard,
    lease_due,
    lease_hinted,
    reap,
    renew,
    replay,
    settle,
)
from gateway.ledger.retention import Pruned, Pruner
from gateway.ledger.sessions import Sessions
from gateway.worker.transaction import DeliveryTransaction
from tests.support.ledger import Reader, make_claim
from tests.support.waiting import PATIENCE_S, until

T = TypeVar("T")

EXAMPLES: Final = int(os.environ.get("TORTURE_EXAMPLES", "30"))
IS_FRESH: Final = "TORTURE_EXAMPLES" in os.environ
"""Asked for more, it goes other ways each time: `--hypothesis-seed` repeats one."""

HOUR: Final = timedelta(hours=1)
"""Of leases and handlers: nothing runs out by itself, only where a step says so."""
DAY: Final = timedelta(days=1)
KEPT: Final = Retention(key=7 * DAY, payload=3 * DAY, dead=14 * DAY)
LOSSES: Final = 2
"""Instead of ten, so that exploring comes to the end of them."""
SHARED: Final = 2
"""Losses that do not count, since the delivery did not run alone."""
MOST_OPEN: Final = 4
"""Transactions that are held, and orders that wait for them."""
HANDLERS: Final[Mapping[str, Sequence[str]]] = {"stripe": ("count", "mail"), "github": ("count",)}
SERVED: Final = (
    [("stripe", "count"), ("stripe", "mail"), ("github", "count")],
    [("stripe", "count"), ("github", "count")],
)
"""What each of the workers has."""

WATCH: Final = """
create table public.keys (
    n bigint generated always as identity, at timestamptz default now(), is_new boolean,
    route text, event_id text, received_at timestamptz, digest bytea, repeats text,
    is_guard boolean, spooled boolean
);
create table public.moves (
    n bigint generated always as identity, at timestamptz default now(), delivery_id bigint,
    route text, event_id text, was text, became text, token uuid, new_token uuid, run integer,
    burned integer, losses integer, new_losses integer, workers_lost integer,
    new_workers_lost integer, ended_at timestamptz, leased_until timestamptz
);
create function public.watch_keys() returns trigger language plpgsql as $$
declare
    e gateway.processed_events := case tg_op when 'INSERT' then new else old end;
begin
    insert into public.keys
        (is_new, route, event_id, received_at, digest, repeats, is_guard, spooled)
    values (tg_op = 'INSERT', e.route, e.event_id, e.received_at, e.digest, e.repeats,
            e.guard is not null, e.spooled);
    return null;
end $$;
create function public.watch_moves() returns trigger language plpgsql as $$
begin
    insert into public.moves
        (delivery_id, route, event_id, was, became, token, new_token, run, burned, losses,
         new_losses, workers_lost, new_workers_lost, ended_at, leased_until)
    values (old.id, old.route, old.event_id, old.status, new.status, old.lease_token,
            new.lease_token, old.runs, new.attempts - old.attempts, old.losses, new.losses,
            old.workers_lost, new.workers_lost, old.finished_at, old.leased_until);
    return null;
end $$;
create trigger watch after insert or delete on gateway.processed_events
    for each row execute function public.watch_keys();
create trigger watch after update or delete on gateway.deliveries
    for each row execute function public.watch_moves();
"""
"""Sees every committed change, also two of them in one step, and changes nothing."""

EMPTY: Final = """
truncate gateway.processed_events, gateway.payloads, gateway.deliveries, gateway.attempts,
         gateway.audit, public.effects, orders, keys, moves restart identity
"""

ARROWS: Final = [f"{was} {became}" for was, after in MOVES.items() for became in after]

WRONG: Final = """
select 'forbidden: ' || was || ' to ' || became || ' of delivery ' || delivery_id
from moves
where was || ' ' || became <> all ($1::text[])
  and (was, became, token) is distinct from ('running', 'running', new_token)  -- a heartbeat
union all
select 'retention deleted delivery ' || delivery_id || ', ' || was
from moves
where became is null and (was not in ('done', 'discarded') or ended_at >= at - $3::interval)
union all
select 'two leases with one token: ' || new_token
from moves
where became = 'running' and was <> 'running'
group by new_token having count(*) > 1
union all
select 'delivery without its event: ' || id
from gateway.deliveries d
where not exists (select from gateway.processed_events e
                  where e.route = d.route and e.event_id = d.event_id)
union all
select 'work without its payload: delivery ' || id
from gateway.deliveries
join gateway.events using (route, event_id)
where body is null
  and (status in ('pending', 'running', 'dead') or finished_at >= now() - $4::interval)
union all
select 'event forgotten too early: ' || event_id
from keys k
where not is_new and at - $3::interval <= coalesce(
    (select max(ended_at) from moves m
     where m.became is null and m.route = k.route and m.event_id = k.event_id and m.at = k.at),
    received_at)
union all
select 'running without a token, or with one and not running: ' || id
from gateway.deliveries
where (status = 'running') <> (lease_token is not null)
union all
select 'lost too often and not dead: ' || id
from gateway.deliveries
where losses >= $2 and status not in ('dead', 'discarded')
union all
select 'runs and attempts differ: delivery ' || d.id
from gateway.deliveries d
left join gateway.attempts a on a.delivery_id = d.id
group by d.id
having array_agg(a.number order by a.number) filter (where a.number is not null)
       is distinct from (select array_agg(n) from generate_series(
           1, d.runs - (d.status = 'running')::integer) n)
union all
select 'attempt of no delivery: ' || delivery_id
from gateway.attempts a
where not exists (select from gateway.deliveries d where d.id = a.delivery_id)
union all
select 'miscounted: run ' || run || ' of delivery ' || delivery_id || ', ' || outcome
from moves m
join gateway.attempts a using (delivery_id)
where a.number = m.run and m.was = 'running' and m.became <> 'running'
  and (m.burned, m.new_losses, m.new_workers_lost) is distinct from (
      (outcome in ('done', 'retry', 'dead'))::integer,
      case when outcome = 'released' then m.losses
           when outcome <> 'lost' then 0
           when a.error like 'WORKER_LOST: the lease ran out%'  -- counts if it ran alone
           then m.losses + (m.workers_lost >= 2)::integer
           else m.losses + 1 end,
      case when outcome not in ('lost', 'released') then 0
           when a.error like 'WORKER_LOST: the lease ran out%' then m.workers_lost + 1
           else m.workers_lost end)
union all
select 'a lease taken back before its time: delivery ' || delivery_id
from moves m
join gateway.attempts a using (delivery_id)
where a.number = m.run and m.was = 'running' and m.became <> 'running'
  and a.error like 'WORKER_LOST: the lease ran out%' and m.leased_until >= m.at
union all
select 'moves and audit differ: ' || coalesce(m.id, a.id) || ', ' || coalesce(m.action, a.action)
from (
    select delivery_id as id, count(*) as n,
           case became when 'pending' then 'replay' else 'discard' end as action
    from moves
    where became = 'discarded' or became = 'pending' and was <> 'running'
    group by 1, 3
) m
full join (
    select delivery_id as id, count(*) as n, action from gateway.audit group by 1, 3
) a on a.id = m.id and a.action = m.action
where m.n is distinct from a.n
union all
select 'given up by retention too early: ' || delivery_id
from gateway.audit a
where actor = 'retention' and not exists (
    select from moves m
    where m.delivery_id = a.delivery_id and m.at = a.at and was = 'dead' and became = 'discarded'
      and ended_at < m.at - $5::interval)
union all
select 'an effect that no settled run left: ' || note
from public.effects
where note not in (select token::text from moves where was = 'running' and became = 'done')
union all
select 'bytes that were to be refused: ' || later.event_id
from keys later
join keys first using (route, digest)
where later.is_new and later.repeats is not null and not later.spooled
  and first.is_new and first.repeats = 'refuse' and first.is_guard and first.n < later.n
  and first.event_id <> later.event_id
  and not exists (select from keys gone
                  where not gone.is_new and gone.n between first.n and later.n
                    and gone.route = first.route and gone.event_id = first.event_id)
"""
"""What must never be there. Reads what is committed: ledger, effects, and what was watched."""


AGE: Final = """
with aged as (
    update gateway.processed_events set received_at = received_at - $3::interval
    where ctid in (select ctid from gateway.processed_events
                   where route = $1 and event_id = $2 for update skip locked)
    returning route, event_id
)
update gateway.deliveries set finished_at = finished_at - $3::interval
where ctid in (select d.ctid from gateway.deliveries d join aged using (route, event_id)
               for update of d skip locked)
"""

SEEN: Final = """
select status, body is not null as has_body
from gateway.deliveries join gateway.events using (route, event_id)
where id = $1
"""


GONE: Final = (*LOST, asyncpg.IdleInTransactionSessionTimeoutError)
"""How a handler hears that the server has ended its connection."""


class Fate(Enum):
    """What becomes of a batch of claims that is in and not committed yet."""

    COMMITTED = auto()
    UNANSWERED = auto()
    """Committed, and the connection is cut before the answer."""
    CUT = auto()
    """The connection is cut before the commit."""
    KILLED = auto()
    """The whole process ends before the commit: nobody waits for an answer any more."""


def _again(outcome: Outcome, delay: timedelta = timedelta()) -> Settlement:
    return Settlement(status=Status.PENDING, outcome=outcome, error=outcome, delay=delay)


UNANSWERED: Final = "done, unanswered"
"""Committed, and the connection is cut before the answer."""
ENDINGS: Final[Mapping[str, Settlement]] = {
    "done": DONE,
    UNANSWERED: DONE,
    "retry": _again(Outcome.RETRY),
    "retry later": _again(Outcome.RETRY, HOUR),
    "deferred": _again(Outcome.DEFERRED),
    "released": _again(Outcome.RELEASED),
    "lost": _again(Outcome.LOST),
    "dead": Settlement(status=Status.DEAD, outcome=Outcome.DEAD, error="no"),
}


class Order(Protocol):
    """A guarded move that a person asks for."""

    async def __call__(
        self, ledger: Connection, delivery_id: int, *, actor: str, reason: str | None
    ) -> object: ...


MAY: Final[Mapping[Order, frozenset[Status]]] = {
    replay: frozenset(Status) - {Status.RUNNING},
    discard: frozenset({Status.PENDING, Status.DEAD}),
}
"""What each order is good for."""


class Actor(Protocol):
    """Whoever does something."""

    @property
    def pid(self) -> int | None:
        """The server process that works for it, and may have to wait."""

    @property
    def is_paused(self) -> bool:
        """Whether it waits for a later step of ours."""


class Going(NamedTuple):
    """Something under way, and who is at it."""

    task: "asyncio.Task[None]"
    actor: Actor


class Stage:
    """One database, all who work on it, and what must be true of it."""

    def __init__(self, url: str, eyes: Connection) -> None:
        self.url = url
        self.ledger = Reader(eyes)
        self._eyes = eyes
        self.receivers = [Receiver(self) for _ in range(3)]
        self.workers = [Worker(self, served) for served in SERVED]
        self.clerks: list[Clerk] = []
        self._going: list[Going] = []
        self.clear()

    def clear(self) -> None:
        """Forgets what it knows of an earlier example."""
        for receiver in self.receivers:
            receiver.hints.clear()
        self.pruner = Pruner(dict.fromkeys(HANDLERS, KEPT), again_after=timedelta())
        self.runs: list[Run] = []
        self.accepted: Counter[tuple[str, str]] = Counter()
        """Answers, and commits whose answer got lost."""
        self.settled: dict[UUID, Status] = {}
        self.effects: Counter[str] = Counter()
        self.refused: set[UUID] = set()
        """Tokens of runs that were told that their lease is lost."""
        self.deadlocks: list[Sequence[Claim]] = []
        """Batches that crossed others, but for those that may (`guards_cross`)."""

    def clerk(self) -> "Clerk":
        """One who has nothing to do."""
        for clerk in self.clerks:
            if clerk.is_free:
                return clerk
        self.clerks.append(Clerk(self.url))
        return self.clerks[-1]

    @property
    def holding(self) -> "list[Clerk]":
        return [clerk for clerk in self.clerks if clerk.is_holding]

    @property
    def free_runs(self) -> "list[Run]":
        return [run for run in self.runs if not run.is_busy]

    def may_hold(self, hold: bool) -> bool:
        """Whether to, if it is wanted: there must be an end to what is open."""
        return hold and len(self.holding) < MOST_OPEN

    def start(self, actor: Actor, work: Coroutine[Any, Any, None]) -> None:
        """Lets it go on, and wait, beside everything else."""
        self._going.append(Going(asyncio.create_task(work), actor))

    async def quiet(self) -> None:
        """Waits until everything under way has ended, or waits for what only a later step ends."""
        deadline = time.monotonic() + PATIENCE_S
        while self._going:
            await asyncio.wait([going.task for going in self._going], timeout=0.002)
            ended = [going for going in self._going if going.task.done()]
            self._going = [going for going in self._going if not going.task.done()]
            for going in ended:
                going.task.result()
            if await self._all_wait():
                return
            assert time.monotonic() < deadline, f"still under way: {self._going}"

    @property
    def under_way(self) -> int:
        return len(self._going)

    async def _all_wait(self) -> bool:
        pids = {actor.pid for _, actor in self._going if not actor.is_paused}
        if None in pids or not pids:
            return not pids
        rows = await self.ledger.rows(
            "select pid, pg_blocking_pids(pid) as blockers from unnest($1::integer[]) pid",
            [*pids],
        )
        blockers = {row["pid"]: set(row["blockers"]) for row in rows if row["blockers"]}
        while free := {p for p, by in blockers.items() if by.isdisjoint(blockers)}:
            for pid in free:  # those in a circle stay: the server will end one of them
                del blockers[pid]
                pids.remove(pid)
        return not pids

    async def crash(self, forget: int) -> None:
        """Postgres restarts: all transactions are undone, and leases that had not reached the disk
        are forgotten (they commit asynchronously), while those who took them live on."""
        for receiver in self.receivers:
            receiver.decide(Fate.CUT)
        for clerk in self.clerks:
            clerk.drop()
        await self.cut()
        for worker in self.workers:
            worker.sessions.drop_idle()
        await self.quiet()
        await self.ledger.run(
            "update gateway.deliveries set status = 'pending', runs = runs - 1, lease_token = null,"
            " leased_until = null where id = any ($1::bigint[])",
            marked(await self.running(), forget),
        )

    async def running(self) -> list[int]:
        rows = await self.ledger.rows(
            "select id from gateway.deliveries where status = 'running' order by id"
        )
        return [row["id"] for row in rows]

    async def cut(self, pids: Sequence[int] | None = None) -> None:
        """The server ends these connections, or all but our own."""
        these = (
            "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and coalesce(pid = any ($1::integer[]), true)"
        )
        await self.ledger.rows(f"select pg_terminate_backend(pid) {these}", pids)
        await until(lambda: self.ledger.value(f"select count(*) = 0 {these}", pids))

    async def check(self) -> None:
        """Everything that must be true after every step."""
        wrong = await self.ledger.rows(WRONG, ARROWS, LOSSES, KEPT.key, KEPT.payload, KEPT.dead)
        assert [row["?column?"] for row in wrong] == []
        assert self.deadlocks == []
        claimed = await self.ledger.rows("select route, event_id from keys where is_new")
        assert Counter((row["route"], row["event_id"]) for row in claimed) == self.accepted
        effects = await self.ledger.rows("select note from public.effects")
        assert Counter(row["note"] for row in effects) == self.effects
        ends = await self.ledger.rows(
            "select token, became from moves where was = 'running' and became <> 'running'"
        )
        ended = {row["token"]: row["became"] for row in ends}
        assert {token: ended.get(token) for token in self.settled} == self.settled
        current = await self.ledger.rows("select lease_token as token from gateway.deliveries")
        assert self.refused.isdisjoint(row["token"] for row in current)

    async def drain(self) -> None:
        """Time goes on, nobody interferes: everything that was acknowledged comes to its end."""
        await self.reset()
        await self.ledger.run(
            "update gateway.deliveries set leased_until = now() - interval '1 s'"
            " where status = 'running'"
        )
        await a_sweep_takes_leases_back(self)
        await retries_fall_due(self)
        await self.workers[0].lease(1_000)
        waiting = await self.ledger.rows(
            "select id from gateway.deliveries where status in ('pending', 'running') order by id"
        )
        assert sorted(run.lease.delivery_id for run in self.runs) == [row["id"] for row in waiting]
        for run in [*self.runs]:
            await run.work()
            await run.settle("done")
        await self.check()
        assert (await self.ledger.statuses()).keys() <= {"done", "dead", "discarded"}

    async def reset(self) -> None:
        """Ends whatever is open."""
        while self._going or self.holding or self.runs:
            for clerk in self.holding:
                await clerk.end(commit=False)
            for receiver in self.receivers:
                receiver.decide(Fate.COMMITTED)
            for run in self.free_runs:
                await run.abandon()
                self.runs.remove(run)
            await self.quiet()

    async def stop(self) -> None:
        """Drops whatever is open, in whichever state it is; the next example begins anew."""
        for going in self._going:
            going.task.cancel()
        await asyncio.gather(*(going.task for going in self._going), return_exceptions=True)
        for receiver in self.receivers:
            await receiver.stop()
        for worker in self.workers:
            await worker.stop()
        for clerk in self.clerks:
            clerk.drop()
        self._going.clear()
        self.clerks.clear()

    async def close(self) -> None:
        await self.stop()
        await self._eyes.close()


RECEIVER: ContextVar["Receiver"] = ContextVar("receiver")
INSERT: Final = claims_module._insert


async def insert_and_wait(connection: Connection, waiters: Sequence[Any]) -> Any:
    """In the place of the claimers' own: its transaction can be kept open."""
    return await RECEIVER.get().insert(connection, waiters)


class Receiver:
    """A `serve` process: a real claimer with one batch at a time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._claimer: Claimer | None = None
        self._tasks: list[asyncio.Task[Claimed]] = []
        self._fate: asyncio.Future[Fate] | None = None
        self._inserted = asyncio.Event()
        self.hints: list[int] = []
        self.batch: Sequence[Claim] = ()
        """The last one: what it crossed may have gone on by the time that it is looked at."""
        self.pid: int | None = None
        self.is_free = True
        self.is_paused = False

    async def claim(self, claims: Sequence[Claim], *, hold: bool = False) -> None:
        """Starts a batch. To hold it is to keep it from committing."""
        if self._claimer is None:
            RECEIVER.set(self)
            self._claimer = Claimer(
                self._stage.url, on_accepted=self.hints.extend, patience_s=PATIENCE_S
            )
            await self._claimer.start()
        self.batch, self.pid, self.is_free = claims, None, False
        self._inserted.clear()
        self._fate = asyncio.get_running_loop().create_future() if hold else None
        self._tasks = [asyncio.create_task(self._claimer.claim(claim)) for claim in claims]
        self._stage.start(self, self._answers())

    def decide(self, fate: Fate) -> None:
        """Lets the batch go on that was held."""
        if fate is Fate.KILLED:
            for task in self._tasks:
                task.cancel()
        if self._fate is not None and not self._fate.done():
            self._fate.set_result(fate)
            self.is_paused = False

    async def insert(self, connection: Connection, waiters: Sequence[Any]) -> Any:
        """As the claimer does it, but for what is to become of it."""
        self.pid = connection.get_server_pid()
        self._inserted.clear()
        try:
            async with connection.transaction():
                rows = await INSERT(connection, waiters)
                fate = await self._decided()
                if fate in {Fate.CUT, Fate.KILLED}:
                    raise asyncpg.ConnectionDoesNotExistError("cut before the commit")
        except asyncpg.DeadlockDetectedError:
            others = [r.batch for r in self._stage.receivers if r is not self]
            if not any(guards_cross(self.batch, other) for other in others):
                self._stage.deadlocks.append(self.batch)
            raise
        finally:
            self._inserted.set()
        if fate is Fate.UNANSWERED:
            self._stage.accepted.update(rows.keys())
            raise asyncpg.ConnectionDoesNotExistError("cut between the commit and its answer")
        return rows

    async def _decided(self) -> Fate:
        if self._fate is None:
            return Fate.COMMITTED
        self.is_paused = not self._fate.done()
        fate, self._fate = await self._fate, None
        return fate

    async def _answers(self) -> None:
        answers = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inserted.wait()  # also where nobody waits for an answer any more
        for claim, answer in zip(self.batch, answers, strict=True):
            if isinstance(answer, Claimed):
                await self._check(claim, answer)
            elif not isinstance(answer, asyncio.CancelledError):
                raise answer
        self.is_free = True

    async def _check(self, claim: Claim, answer: Claimed) -> None:
        """That the answer fits what was claimed, by whomever."""
        brought = await self._stage.ledger.rows(
            "select event_id, digest, repeats from keys where is_new and route = $1 order by n",
            claim.route,
        )
        mine = [row for row in brought if row["event_id"] == claim.envelope.id]
        match answer.verdict:
            case ClaimVerdict.ACCEPTED:
                self._stage.accepted[claim.key] += 1
                assert len(answer.delivery_ids) == len(claim.handlers)
            case ClaimVerdict.DUPLICATE:
                assert mine, "acknowledged as a duplicate of nothing"
                assert answer.conflict == (mine[-1]["digest"] != claim.digest)
            case ClaimVerdict.REPEATED_BODY:
                assert claim.repeats is not None
                assert not claim.spooled, "it was acknowledged before"
                [first] = [row for row in brought if row["event_id"] == answer.first_event_id][-1:]
                assert (first["digest"], first["repeats"]) == (claim.digest, "refuse")

    async def stop(self) -> None:
        if self._claimer is not None:
            await self._claimer.stop()
        self._claimer = self._fate = None
        self.is_free, self.is_paused = True, False


def guards_cross(one: Sequence[Claim], other: Sequence[Claim]) -> bool:
    """Whether two batches bring the same bytes under different ids: they are inserted in the order
    of their keys, so these may deadlock on the guard. One of them is run again then."""
    return any(
        a.repeats and b.repeats and (a.route, a.digest) == (b.route, b.digest) and a.key != b.key
        for a in one
        for b in other
    )


class Clerk:
    """Runs statements of ours, in a transaction that can stay open until a later step."""

    is_paused = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._transaction: Transaction | None = None
        self._is_busy = False
        self._on_end: Callable[[bool], None] = _ignore

    @property
    def is_free(self) -> bool:
        return not self._is_busy and self._transaction is None

    @property
    def is_holding(self) -> bool:
        return not self._is_busy and self._transaction is not None

    @property
    def pid(self) -> int | None:
        return None if self._connection is None else self._connection.get_server_pid()

    async def act(
        self,
        work: Callable[[Connection], Awaitable[T]],
        *,
        hold: bool = False,
        on_end: Callable[[bool], None] | None = None,
    ) -> T:
        """Does the work and commits, or holds that back. Tells at the end whether it committed."""
        self._is_busy = True
        self._on_end = on_end or _ignore
        try:
            if self._connection is None:
                self._connection = await connect(self._url, name="clerk", command_timeout_s=None)
            self._transaction = self._connection.transaction()
            await self._transaction.start()
            result = await work(self._connection)
            if not hold:
                await self.end(commit=True)
        except BaseException:
            await self.end(commit=False)
            raise
        finally:
            self._is_busy = False
        return result

    async def end(self, *, commit: bool) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        try:
            await (transaction.commit() if commit else transaction.rollback())
        except LOST:
            commit = False
            self.drop()
        self._on_end(commit)

    def drop(self) -> None:
        """The server has ended the connection."""
        transaction, self._transaction = self._transaction, None
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        if transaction is not None:
            self._on_end(False)


def _ignore(_: bool) -> None: ...


class Worker:
    """A worker: leases, and keeps for ever what it has leased, as a stopped process does."""

    def __init__(self, stage: Stage, handlers: Sequence[tuple[str, str]]) -> None:
        self.stage = stage
        self.handlers = handlers
        self.id = uuid4()
        self.sessions = Sessions(stage.url, name="handlers")

    async def stop(self) -> None:
        await self.sessions.close()
        self.sessions = Sessions(self.stage.url, name="handlers")

    async def lease(
        self, most: int, *, hints: Sequence[int] | None = None, hold: bool = False
    ) -> None:
        """Leases what is due, or what it is told of."""
        taken: list[Lease] = []

        async def take(connection: Connection) -> None:
            if hints is None:
                due = await lease_due(connection, most, self.handlers, HOUR)
                left = most - len(due)
                if left:  # as the isolated process of a worker does
                    due += await lease_due(connection, left, self.handlers, HOUR, suspects=True)
                taken.extend(due)
            else:
                taken.extend(await lease_hinted(connection, hints, self.handlers, HOUR))

        def end(is_committed: bool) -> None:
            if is_committed:
                self.stage.runs.extend(Run(self, lease) for lease in taken)

        await self.stage.clerk().act(take, hold=hold, on_end=end)
        assert {(lease.event.route, lease.handler) for lease in taken} <= {*self.handlers}
        assert len(taken) <= (most if hints is None else len(hints))

    async def renew(self) -> None:
        """The heartbeat says of each of its leases whether it is held still."""
        leases = [run.lease for run in self.stage.runs if run.worker is self and not run.is_busy]
        held = await self.stage.clerk().act(lambda c: renew(c, leases, HOUR, self.id))
        rows = await self.stage.ledger.rows("select lease_token from gateway.deliveries")
        assert held == {lease.token for lease in leases} & {row["lease_token"] for row in rows}


@dataclass(eq=False)
class Run:
    """A lease in the hands of a worker that may be out of date, with the handler's transaction."""

    worker: Worker
    lease: Lease
    limit: timedelta = HOUR
    is_busy: bool = False
    has_worked: bool = False
    status: Status | None = None
    """What it made of its delivery, if anything."""
    pid: int | None = None
    is_paused: ClassVar[bool] = False
    db: DeliveryTransaction = field(init=False)

    def __post_init__(self) -> None:
        self.db = DeliveryTransaction(self.worker.sessions, self.limit)

    async def work(self) -> None:
        """Writes as a handler does: a row that others write too, and an effect."""
        self.is_busy = True
        try:
            await self._write()
        except GONE:
            await self.abandon()
        self.is_busy = False

    async def _write(self) -> None:
        self.pid, lease = await self.db.send("fetchval", "select pg_backend_pid()"), self.lease
        await self.db.send(
            "execute",
            "insert into orders (id, status) values ($1, $2)"
            " on conflict (id) do update set status = excluded.status",
            str(lease.delivery_id),
            str(lease.token),
        )
        await self.db.send(
            "execute",
            "insert into public.effects (event_id, handler, note) values ($1, $2, $3)",
            lease.event.id,
            lease.handler,
            str(lease.token),
        )
        self.has_worked = True

    async def check_limit(self) -> None:
        """That the server ends the handler's transaction where the worker does not."""
        limit = await self.db.send(
            "fetchval", "select current_setting('idle_in_transaction_session_timeout')::interval"
        )
        assert limit == self.limit, "a zombie's transaction could block its successor for ever"

    async def settle(self, ending: str, *, hold: bool = False) -> None:
        """Ends the run as the handler did, under its fence."""
        self.is_busy = True
        try:
            if self.has_worked and ENDINGS[ending] is DONE:
                await self._complete(is_answered=ending != UNANSWERED)
            else:
                await self._settle_apart(ENDINGS[ending], hold=hold)
        except LeaseLost:
            self._end()
            self.worker.stage.refused.add(self.lease.token)
            await self.db.close()
        except GONE:  # nothing is known: it will ask again
            self.is_busy = False
            await self.abandon()

    async def _complete(self, *, is_answered: bool) -> None:
        await self.db.complete(self.lease, chain=False)
        self.worker.stage.effects[str(self.lease.token)] += 1
        self._end(Status.DONE)
        if not is_answered:
            again = _again(Outcome.LOST)
            with pytest.raises(LeaseLost):
                await self.worker.stage.clerk().act(lambda c: settle(c, self.lease, again))

    async def _settle_apart(self, settlement: Settlement, *, hold: bool) -> None:
        await self.abandon()
        became: list[Status] = []
        self.pid = None

        async def work(connection: Connection) -> None:
            self.pid = connection.get_server_pid()
            became.append(await settle(connection, self.lease, settlement))

        def end(is_committed: bool) -> None:
            self.is_busy = False
            if is_committed:
                self._end(became[0])

        await self.worker.stage.clerk().act(work, hold=hold, on_end=end)

    def _end(self, status: Status | None = None) -> None:
        self.status = status
        if status is not None:
            self.worker.stage.settled[self.lease.token] = status
        if self in self.worker.stage.runs:
            self.worker.stage.runs.remove(self)

    async def abandon(self) -> None:
        """Undoes what the handler wrote; it may begin anew."""
        await self.db.close()
        self.db = DeliveryTransaction(self.worker.sessions, self.limit)
        self.has_worked = False


async def open_stage(url: str) -> Stage:
    """A stage on this database."""
    eyes = await asyncpg.connect(url)
    await eyes.execute(WATCH)
    name = await eyes.fetchval("select current_database()")
    await eyes.execute(f"alter database \"{name}\" set deadlock_timeout = '50ms'")
    await eyes.execute("set session_replication_role = replica")  # what it arranges is no move
    return Stage(url, eyes)


class Wish(NamedTuple):
    """A request that a sender makes, out of few, so that they meet."""

    route: str
    number: int
    body: int
    policy: RepeatPolicy
    spooled: bool

    def claim(self) -> Claim:
        handlers = HANDLERS[self.route]
        return make_claim(
            f"evt_{self.number}",
            route=self.route,
            handlers=handlers[: 1 + self.number % len(handlers)] if self.number else (),
            body=str(self.body).encode(),
            type=self.policy,
            repeats=self.policy if self.route == "github" else None,
        )._replace(
            spooled=self.spooled,
            refuses=None if self.spooled else lambda first: first == RepeatPolicy.REFUSE,
        )


def pick(these: Sequence[T], n: int) -> list[T]:
    """One of those that there are, if there are any."""
    return [these[n % len(these)]] if these else []


def marked(these: Sequence[T], mask: int) -> list[T]:
    """Those whose bit is set."""
    return [this for n, this in enumerate(these) if mask >> n & 1]


async def requests_come_in(stage: Stage, *, n: int, wishes: list[Wish], hold: bool) -> None:
    for receiver in pick([r for r in stage.receivers if r.is_free], n):
        await receiver.claim([wish.claim() for wish in wishes], hold=hold)


async def claims_go_on(stage: Stage, *, n: int, fate: Fate) -> None:
    for receiver in pick([r for r in stage.receivers if r.is_paused], n):
        receiver.decide(fate)


async def a_worker_leases(stage: Stage, *, n: int, most: int, is_hinted: bool, hold: bool) -> None:
    hints = [hint for receiver in stage.receivers for hint in receiver.hints]
    for worker in pick(stage.workers, n):
        await worker.lease(most, hints=hints if is_hinted else None, hold=stage.may_hold(hold))


async def a_worker_says_that_it_lives(stage: Stage, *, n: int) -> None:
    for worker in pick(stage.workers, n):
        await worker.renew()


async def a_handler_works(stage: Stage, *, n: int) -> None:
    for run in pick([run for run in stage.free_runs if not run.has_worked], n):
        stage.start(run, _work(run))


async def _work(run: Run) -> None:
    await run.work()
    if run.has_worked:
        await run.check_limit()


async def a_run_ends(stage: Stage, *, n: int, ending: str, hold: bool) -> None:
    for run in pick(stage.free_runs, n):
        stage.start(run, run.settle(ending, hold=stage.may_hold(hold)))


async def a_handler_works_and_returns(stage: Stage, *, n: int) -> None:
    for run in pick([run for run in stage.free_runs if not run.has_worked], n):
        stage.start(run, _work_and_return(run))


async def _work_and_return(run: Run) -> None:
    await _work(run)
    await run.settle("done")


async def leases_run_out(stage: Stage, *, which: int) -> None:
    await stage.ledger.run(
        "update gateway.deliveries set leased_until = now() - interval '1 s' where id in ("
        "select id from gateway.deliveries where id = any ($1::bigint[]) and status = 'running'"
        " for update skip locked)",
        marked(await stage.running(), which),
    )


async def a_sweep_takes_leases_back(stage: Stage, *, which: int = 0, hold: bool = False) -> None:
    await leases_run_out(stage, which=which)
    await stage.clerk().act(lambda c: reap(c, 1_000, timedelta()), hold=stage.may_hold(hold))


async def retries_fall_due(stage: Stage) -> None:
    await stage.ledger.run(
        "update gateway.deliveries set due_at = now() - interval '1 s' where id in ("
        "select id from gateway.deliveries where status = 'pending' for update skip locked)"
    )


async def events_grow_old(stage: Stage, *, which: int, days: int) -> None:
    events = await stage.ledger.rows(
        "select route, event_id from gateway.processed_events order by event_id, route"
    )
    for event in marked(events, which):
        await stage.ledger.run(AGE, event["route"], event["event_id"], days * DAY)


async def retention_forgets(stage: Stage, *, hold: bool = False) -> None:
    def step(connection: Connection) -> Awaitable[Pruned]:
        return stage.pruner.step(cast(Pooled, connection))

    await stage.clerk().act(step, hold=stage.may_hold(hold))


async def a_person_orders(stage: Stage, *, n: int, order: Order, hold: bool) -> None:
    if stage.under_way == MOST_OPEN:
        return
    deliveries = await stage.ledger.rows("select id from gateway.deliveries order by id")
    for row in pick(deliveries, n):
        clerk = stage.clerk()
        ordering = _order(stage, clerk, order, row["id"], hold=stage.may_hold(hold))
        stage.start(clerk, ordering)


async def _order(stage: Stage, clerk: Clerk, order: Order, delivery_id: int, *, hold: bool) -> None:
    try:
        await clerk.act(lambda c: order(c, delivery_id, actor="ann", reason=None), hold=hold)
    except CommandFailed:
        assert await stage.ledger.rows(SEEN, delivery_id) == [], "it is there"
    except TransitionRefused:
        [row] = await stage.ledger.rows(SEEN, delivery_id)
        is_alone = stage.under_way == 1  # or others may have moved it since
        assert not (is_alone and row["has_body"] and row["status"] in MAY[order])
    except LOST:
        pass


async def a_transaction_ends(stage: Stage, *, n: int, commit: bool) -> None:
    for clerk in pick(stage.holding, n):
        await clerk.end(commit=commit)


async def the_server_ends_an_idle_transaction(stage: Stage, *, n: int) -> None:
    for run in pick([run for run in stage.free_runs if run.has_worked], n):
        assert run.pid is not None
        await stage.cut([run.pid])


async def postgres_crashes(stage: Stage, *, forget: int) -> None:
    await stage.crash(forget)


ANY: Final = st.integers(0, 31)
HOLD: Final = st.sampled_from([False, False, False, True])
WISH: Final = st.builds(
    Wish,
    route=st.sampled_from(["stripe", "github"]),
    number=st.integers(0, 4),
    body=st.integers(0, 2),
    policy=st.sampled_from(RepeatPolicy),
    spooled=st.sampled_from([False, False, True]),
)
WISHES: Final = st.lists(WISH, min_size=1, max_size=6)


def often(times: int, step: Callable[..., Awaitable[None]], **arguments: Any) -> list[Any]:
    return [st.builds(partial, st.just(step), **arguments) for _ in range(times)]


STEPS: Final = st.one_of(
    *often(6, a_worker_leases, n=ANY, most=st.integers(1, 4), is_hinted=st.booleans(), hold=HOLD),
    *often(5, a_handler_works, n=ANY),
    *often(3, a_handler_works_and_returns, n=ANY),
    *often(3, a_run_ends, n=ANY, ending=st.just("done"), hold=HOLD),
    *often(2, a_run_ends, n=ANY, ending=st.just("dead"), hold=HOLD),
    *often(4, a_run_ends, n=ANY, ending=st.sampled_from(sorted(ENDINGS)), hold=HOLD),
    *often(1, leases_run_out, which=ANY),
    *often(5, a_sweep_takes_leases_back, which=ANY, hold=HOLD),
    *often(7, a_transaction_ends, n=ANY, commit=st.booleans()),
    *often(4, requests_come_in, n=ANY, wishes=WISHES, hold=HOLD),
    *often(3, claims_go_on, n=ANY, fate=st.sampled_from(Fate)),
    *often(2, a_worker_says_that_it_lives, n=ANY),
    *often(1, retries_fall_due),
    *often(3, events_grow_old, which=ANY, days=st.sampled_from([4, 8, 15])),
    *often(3, retention_forgets, hold=HOLD),
    *often(4, a_person_orders, n=ANY, order=st.sampled_from([replay, discard]), hold=HOLD),
    *often(1, the_server_ends_an_idle_transaction, n=ANY),
    *often(1, postgres_crashes, forget=ANY),
)
"""One rule for all of them: of many rules hypothesis leaves out half in each example, and then no
delivery lives a whole life. A step that finds nothing to do does nothing."""


class Exploration(RuleBasedStateMachine):
    """Steps that anyone can take at any time, in any order, and what is checked after each."""

    stage: ClassVar[Stage]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.is_sound = True

    @initialize(wishes=st.lists(WISH, min_size=4, max_size=8))
    def begin(self, wishes: list[Wish]) -> None:
        self.take(partial(requests_come_in, n=0, wishes=wishes, hold=False))

    @rule(step=STEPS)
    def take(self, step: Callable[[Stage], Awaitable[None]]) -> None:
        self.is_sound = False
        self.runner.run(self._take(step))

    async def _take(self, step: Callable[[Stage], Awaitable[None]]) -> None:
        await step(self.stage)
        await self.stage.quiet()

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.runner.run(self.stage.check())
        self.is_sound = True

    def teardown(self) -> None:
        try:
            if self.is_sound:
                self.is_sound = False
                self.runner.run(self.stage.drain())
                self.is_sound = True
        finally:
            self.runner.run(self._clean())

    async def _clean(self) -> None:
        await (self.stage.reset() if self.is_sound else self.stage.stop())
        await self.stage.ledger.run(EMPTY)
        self.stage.clear()


@pytest.fixture
def seams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two places in which the product is not as it is: see `insert_and_wait` and `LOSSES`."""
    monkeypatch.setattr(claims_module, "_insert", insert_and_wait)
    monkeypatch.setattr("gateway.ledger.deliveries.MAX_LOSSES", LOSSES)


@pytest.mark.usefixtures("seams")
@pytest.mark.timeout(
    600 + EXAMPLES
)  # of which a failure takes up to 300 s, to be told in few steps
def test_no_order_of_steps_breaks_the_ledger(database_url: str) -> None:
    with asyncio.Runner() as loop:

        class Here(Exploration):
            stage = loop.run(open_stage(database_url))
            runner = loop

        try:
            run_state_machine_as_test(
                Here,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=50,
                    derandomize=not IS_FRESH,
                    database=None,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            loop.run(Here.stage.close())


@pytest.fixture
async def stage(seams: None, database_url: str) -> AsyncIterator[Stage]:
    """For single ways through the same machine: each shows a defect that it must not have."""
    stage = await open_stage(database_url)
    yield stage
    await stage.close()


async def claim(stage: Stage, *claims: Claim) -> None:
    await stage.receivers[0].claim(claims)
    await stage.quiet()


async def lease(worker: Worker) -> Run:
    """The run of the only delivery that is due."""
    before = [*worker.stage.runs]
    await worker.lease(1)
    [run] = [run for run in worker.stage.runs if run not in before]
    return run


async def test_crossed_batches_wait_for_each_other_and_never_deadlock(stage: Stage) -> None:
    """Both wait in the middle, each with the row in its hands that the other will ask for."""
    one, other, slow = stage.receivers
    a, m, z = make_claim("a"), make_claim("m"), make_claim("z")
    for receiver, batch in (slow, [m]), (one, [a, m, z]), (other, [z, m, a]):
        await receiver.claim(batch, hold=receiver is slow)
        await stage.quiet()
    slow.decide(Fate.COMMITTED)
    await stage.quiet()
    assert not stage.under_way
    await stage.check()
    assert stage.accepted == Counter([a.key, m.key, z.key])


async def test_batches_that_deadlock_on_the_repeat_guard_are_run_again(stage: Stage) -> None:
    """Inserted in the order of their keys, the same bytes under other ids can still cross."""
    one, other, slow = stage.receivers
    a, b, m, y, z = (
        make_claim(event_id, body=body, repeats=RepeatPolicy.REFUSE)
        for event_id, body in (("a", b"1"), ("b", b"2"), ("m", b"3"), ("y", b"2"), ("z", b"1"))
    )
    for receiver, batch in (slow, [m]), (one, [a, m, y]), (other, [b, m, z]):
        await receiver.claim(batch, hold=receiver is slow)
        await stage.quiet()
    slow.decide(Fate.COMMITTED)
    await stage.quiet()
    assert not stage.under_way
    await stage.check()
    bytes_accepted = sorted(c.body for c in (a, b, m, y, z) if stage.accepted[c.key])
    assert bytes_accepted == [b"1", b"2", b"3"]


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_two_holders_of_one_lease_after_a_postgres_crash_leave_one_effect(
    zombie_first: bool, stage: Stage
) -> None:
    await claim(stage, make_claim("evt_1", handlers=["count"]))
    zombie = await lease(stage.workers[0])
    await stage.crash(forget=1)
    successor = await lease(stage.workers[1])
    for run in (zombie, successor) if zombie_first else (successor, zombie):
        await run.work()
        await run.settle("done")
    await stage.check()
    assert (zombie.status, successor.status) == (None, Status.DONE)
    assert await stage.ledger.effects() == 1


@pytest.mark.parametrize("ending", ["done", "retry", "dead"])
@pytest.mark.parametrize("zombie_first", [True, False])
async def test_a_worker_that_comes_back_from_the_dead_leaves_no_trace(
    zombie_first: bool, ending: str, stage: Stage
) -> None:
    await claim(stage, make_claim("evt_1", handlers=["count"]))
    zombie = await lease(stage.workers[0])
    await a_sweep_takes_leases_back(stage, which=1)
    successor = await lease(stage.workers[1])
    for run in (zombie, successor) if zombie_first else (successor, zombie):
        await run.work()
        await run.settle(ending if run is zombie else "done")
    await stage.check()
    assert (zombie.status, successor.status) == (None, Status.DONE)
    assert await stage.ledger.effects() == 1


async def test_a_zombies_open_transaction_does_not_block_its_successor_for_ever(
    stage: Stage,
) -> None:
    await claim(stage, make_claim("evt_1", handlers=["count"]))
    zombie = await lease(stage.workers[0])
    zombie.limit = timedelta(seconds=1)
    await zombie.abandon()
    await zombie.work()
    await a_sweep_takes_leases_back(stage, which=1)
    successor = await lease(stage.workers[1])
    stage.start(successor, successor.work())
    await until(lambda: successor.has_worked)
    await successor.settle("done")
    for _ in range(2):  # it finds its connection gone, and then its lease
        await zombie.settle("done")
    await stage.check()
    assert (zombie.status, successor.status) == (None, Status.DONE)
    assert await stage.ledger.effects() == 1


async def test_a_delivery_that_loses_its_worker_every_time_is_dead_in_the_end(
    stage: Stage,
) -> None:
    await claim(stage, make_claim("evt_1", handlers=["count"]))
    for _ in range(SHARED + LOSSES):
        await lease(stage.workers[0])
        await a_sweep_takes_leases_back(stage, which=1)
        await stage.check()
    delivery = await stage.ledger.delivery()
    assert (delivery["status"], delivery["losses"], delivery["attempts"]) == ("dead", LOSSES, 0)
    assert delivery["error"].startswith("WORKER_LOST")


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING, Status.DEAD])
async def test_retention_never_deletes_acknowledged_work(status: Status, stage: Stage) -> None:
    """Its neighbour has ended long ago, and the event is older than every key that is kept."""
    await claim(stage, make_claim("evt_1", handlers=["mail"]), make_claim("evt_2", handlers=[]))
    await claim(stage, make_claim("evt_3", handlers=["count", "mail"]))
    await stage.workers[1].lease(1)
    await stage.runs[0].settle("done")
    if status is not Status.PENDING:
        await stage.workers[0].lease(2)
    if status is Status.DEAD:
        for run in [*stage.runs]:
            await run.settle("dead")
    await events_grow_old(stage, which=0b111, days=13)
    for _ in range(3):
        await retention_forgets(stage)
    await stage.check()
    assert await stage.ledger.statuses() == {status: 2, Status.DONE: 1}
    assert await stage.ledger.value("select count(*) from gateway.processed_events") == 2
    await stage.drain()
