"""Runs a handler's body against the real ledger, and commits it without settling its delivery."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import orjson

from gateway.errors import Defer, LeaseLost, Reject, Retry
from gateway.ledger.connection import CONTENDED
from gateway.ledger.sealed import OPEN
from gateway.model import Event, Lease
from gateway.project import Project
from gateway.registry import Subscription
from gateway.run.bench import Workbench
from gateway.run.context import transaction_of
from gateway.run.policy import summary
from gateway.secrets import Secret
from gateway.testing.rehearse.answers import Answers, GivenAnswer
from gateway.testing.rehearse.context import WatchedContext
from gateway.testing.rehearse.events import AGE, Occasion
from gateway.testing.rehearse.guard import ours
from gateway.testing.rehearse.made_up import MadeUp
from gateway.testing.rehearse.scene import LONGEST_S, Scene, build_scene
from gateway.testing.rehearse.stand_ins import StandIn
from gateway.testing.rehearse.tables import State, Table
from gateway.testing.rehearse.trace import Kind, Run, running
from gateway.testing.rehearse.wire import Wire
from gateway.testing.throwaway import Throwaway

API_KEY: Final = b"sk_test_rehearsal"

_LEASE: Final = """
update gateway.deliveries
set status = 'running', runs = runs + 1, lease_token = gen_random_uuid(), leased_at = now(),
    leased_until = now() + interval '1 day'
where id = $1
returning lease_token
"""
_IS_BLOCKED: Final = """
select exists (select from pg_stat_activity
               where datname = current_database() and backend_type = 'client backend'
                 and wait_event_type = 'Lock')
"""
_JOBS: Final = """
select event_id, type, body from gateway.events
where provider = 'publish' and route = $1
order by event_id
"""


class End(StrEnum):
    """How a run of the body ended."""

    DONE = "done"
    REJECTED = "rejected"
    DEFERRED = "deferred"
    FAILED = "failed"
    CONTENDED = "contended"
    LOST = "lost"
    KILLED = "killed"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """An event that was claimed for a handler."""

    delivery_id: int
    subscription: Subscription
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """A run that has ended."""

    run: Run
    end: End
    error: str | None = None
    raised: BaseException | None = None


class Stage:
    """Where runs take place."""

    def __init__(
        self,
        throwaway: Throwaway,
        project: Project,
        root: Path,
        started_at: datetime,
        *,
        answers: Sequence[GivenAnswer] = (),
        reads: Sequence[str] = (),
    ) -> None:
        self._throwaway = throwaway
        self._project = project
        self._root = root
        self._started_at = started_at
        wire = Wire(Answers(started_at - AGE, answers), reads)
        self._http = httpx.AsyncClient(transport=wire, trust_env=False)
        self._scene: Scene | None = None
        self._claims = 0

    async def close(self) -> None:
        """Leaves no connection and no database behind."""
        await self._strike()
        await self._http.aclose()

    async def fresh(self, rows: Sequence[MadeUp] = (), *, is_skewed: bool = False) -> None:
        """A database as the schema makes it, with these rows. With `is_skewed`, its sequences have
        moved on."""
        if self._scene is None or not await self._scene.is_swept():
            await self._strike()
            with ours():
                self._scene = await build_scene(self._throwaway, self._started_at)
        await self._scene.fill(rows)
        if is_skewed:
            await self._scene.skew()
        self._claims = 0

    async def renew(self) -> None:
        """Gives up a database of which nothing is known any more."""
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await self._strike()
        await self.fresh()

    async def accepts(self, rows: Sequence[MadeUp]) -> bool:
        """Whether such rows can be in the database as the schema makes it."""
        try:
            await self.fresh(rows)
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    async def deliver(self, occasion: Occasion, subscription: Subscription) -> Delivered:
        """Claims the event for the handler. What is claimed later was received later."""
        self._claims += 1
        received_at = self._started_at + timedelta(milliseconds=self._claims)
        claim = occasion.claim(subscription.handler, received_at)
        with ours():
            claimed = await self._here.claimer.claim(claim)
        return Delivered(
            delivery_id=claimed.delivery_ids[0],
            subscription=subscription,
            event=occasion.event(received_at),
        )

    def make_run(self, **stops: Any) -> Run:
        """One that is yet to be performed, with what stops it."""
        return Run(root=self._root, **stops)

    async def perform(
        self, delivered: Delivered, run: Run | None = None, *, told: Sequence[Any] = ()
    ) -> Performance:
        """Runs the body once, under a new lease, and commits what it wrote. `told` are payloads
        that are known by then, the newest first; else only the event's own is."""
        run = run or self.make_run()
        run.told = list(told) or [delivered.event.payload]
        lease = Lease(
            delivery_id=delivered.delivery_id,
            token=await self._here.control.fetchval(_LEASE, delivered.delivery_id),
            handler=delivered.subscription.handler,
            attempt=1,
            event=delivered.event,
        )
        context = WatchedContext(
            lease=lease,
            subscription=delivered.subscription,
            bench=self._bench(self._here),
            run=run,
        )
        with running(run):
            raised = await _raised_by(delivered, context, run)
        if run.is_killed:
            transaction_of(context).abandon()
        else:
            await transaction_of(context).close()
        return _ended(run, raised)

    async def state(self) -> State:
        """What is in the user's tables now."""
        return await self._here.state()

    @property
    def pristine(self) -> State:
        """What the schema leaves in the user's tables."""
        return self._here.pristine

    async def jobs(self, queue: str) -> list[tuple[str, str, Any]]:
        """What was published to a queue: id, type and payload of each job."""
        rows = await self._here.control.fetch(_JOBS, queue)
        return [(row["event_id"], row["type"], orjson.loads(row["body"])) for row in rows]

    async def is_blocked(self) -> bool:
        """Whether some transaction waits for another's lock."""
        blocked: bool = await self._here.ledger.fetchval(_IS_BLOCKED)
        return blocked

    @property
    def tables(self) -> tuple[Table, ...]:
        """The user's."""
        return self._here.tables

    @property
    def url(self) -> str:
        """Where the database is."""
        return self._here.url

    @property
    def _here(self) -> Scene:
        if self._scene is None:
            raise RuntimeError("nothing is set up yet: call fresh() first")
        return self._scene

    def _bench(self, scene: Scene) -> Workbench:
        config, registry = self._project.config, self._project.registry
        return Workbench(
            work=scene.work,
            ledger=scene.ledger,
            http=self._http,
            patience=timedelta(seconds=LONGEST_S),
            config=config,
            registry=registry,
            vault=OPEN,
            api_keys={route.name: Secret(API_KEY) for route in config.routes},
            resources={item.name: StandIn(item.name) for item in registry.resources},
            on_retry=lambda _: None,
            on_published=lambda _: None,
        )

    async def _strike(self) -> None:
        scene, self._scene = self._scene, None
        if scene is not None:
            with ours():
                await scene.strike()
                await self._throwaway.drop(scene.url)


async def _raised_by(
    delivered: Delivered, context: WatchedContext, run: Run
) -> BaseException | None:
    """Runs the body and commits; returns what it raised."""
    try:
        async with asyncio.timeout(LONGEST_S):
            await delivered.subscription.function(delivered.event, context)
            end = run.begin(Kind.END, "commit")
            await context.commit()
            run.finish(end)
    except BaseException as error:  # the user's own code
        if _is_ours_to_obey(error):
            raise
        return error
    return None


def _is_ours_to_obey(error: BaseException) -> bool:
    """Whether the rehearsal itself is to end."""
    task = asyncio.current_task()
    is_cancelled = task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, asyncio.CancelledError) and is_cancelled
    )


def _ended(run: Run, raised: BaseException | None) -> Performance:
    if run.is_killed:
        return Performance(run=run, end=End.KILLED)
    if raised is None:
        return Performance(run=run, end=End.DONE)
    end = _end_of(raised)
    error = f"did not end within {LONGEST_S:g} s" if end is End.LATE else summary(raised)
    return Performance(run=run, end=end, error=error, raised=raised)


def _end_of(error: BaseException) -> End:
    match error:
        case Reject():
            return End.REJECTED
        case Retry() | Defer():
            return End.DEFERRED
        case LeaseLost():
            return End.LOST
        case TimeoutError():
            return End.LATE
    return End.CONTENDED if isinstance(error, CONTENDED) else End.FAILED
