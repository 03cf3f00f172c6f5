"""A worker in this process, with handlers given as functions."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gateway import Context, Event
from gateway.base.model import Backoff, Retention, RetryPolicy
from gateway.base.secrets import Secret
from gateway.config.project import Project
from gateway.config.registry import Registry, Resource, Subscription
from gateway.config.routes import AlertDestinations, Config, Route
from gateway.config.settings import Settings
from gateway.http.outbound import Destination
from gateway.privacy.encryption import KeyRing
from gateway.processes.work import Worker, start_worker
from gateway.providers import PROVIDERS
from tests.support.ledger import Reader
from tests.support.waiting import until

Function = Callable[[Event, Context], Awaitable[None]]

QUICK = RetryPolicy(
    attempts=3,
    backoff=Backoff.FIXED,
    base=timedelta(milliseconds=20),
    cap=timedelta(milliseconds=20),
)
DAY = timedelta(days=1)


def subscribe(
    function: Function,
    *,
    name: str = "handlers.count",
    route: str = "stripe",
    timeout: timedelta = timedelta(seconds=20),
    retry: RetryPolicy = QUICK,
    **flow: Any,
) -> Subscription:
    """A handler that takes everything of its route."""
    return Subscription(
        route=route,
        handler=name,
        types=("*",),
        function=function,
        timeout=timeout,
        retry=retry,
        **flow,
    )


def make_settings(url: str, **changes: Any) -> Settings:
    """Settings whose times are short enough for a test."""
    values: dict[str, Any] = {
        "database_url": SecretStr(url),
        "lease": timedelta(seconds=2),
        "sweep": timedelta(milliseconds=200),
        "grace": timedelta(seconds=5),
    }
    return Settings(**(values | changes))


def make_route(name: str = "stripe", **changes: Any) -> Route:
    """A route with defaults."""
    values: dict[str, Any] = {
        "name": name,
        "provider": PROVIDERS["stripe"],
        "path": f"/webhooks/{name}",
        "secrets": (),
        "api_key": None,
        "tolerance": timedelta(minutes=5),
        "handlers": (),
        "max_body": 1024 * 1024,
        "ack_within": timedelta(seconds=3),
        "receive_within": timedelta(seconds=10),
        "types": None,
        "livemode": None,
        "repeats": "refuse",
        "spools": False,
        "retention": Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY),
        "line": 1,
    }
    return Route(**(values | changes))


def make_config(*routes: Route) -> Config:
    """A configuration of these routes."""
    return Config(
        file=Path("routes.yaml"),
        schema=(),
        timeout=timedelta(seconds=20),
        retry=QUICK,
        routes=routes or (make_route(),),
    )


@asynccontextmanager
async def working(
    url: str,
    *subscriptions: Subscription,
    config: Config | None = None,
    resources: Sequence[Resource] = (),
    api_keys: Mapping[str, Secret] | None = None,
    destinations: Mapping[tuple[str, str], Destination] | None = None,
    alerts: AlertDestinations | None = None,
    ring: KeyRing | None = None,
    isolated: bool = False,
    **settings: Any,
) -> AsyncIterator[Worker]:
    """A running worker. It has no queue: it finds its work in the ledger."""
    worker = await start_worker(
        Project(
            settings=make_settings(url, **settings),
            config=config or make_config(),
            registry=Registry(subscriptions, resources),
            secrets={},
            api_keys=api_keys or {},
            destinations=destinations or {},
            alerts=alerts or AlertDestinations(),
            ring=ring or KeyRing(),
        ),
        isolated=isolated,
    )
    try:
        yield worker
    finally:
        await worker.stop()


def is_stopping(worker: Worker) -> bool:
    """Whether the worker takes no more deliveries."""
    return not worker.runner.is_taking


async def looked_again(worker: Worker) -> None:
    """Wait until a worker has asked the ledger for work, in a statement that begins after this
    call; a worker without a free slot asks only for its leases."""
    runner = worker.runner
    for _ in range(2):  # the first answer may be to a statement that was under way
        now = time.monotonic()
        await until(lambda now=now: (runner.asked_at or 0) > now)


async def swept(ledger: Reader) -> None:
    """Wait until every worker has made a whole sweep that begins after this call."""
    query = "select min(seen_at) > $1 from gateway.workers"
    for _ in range(2):  # when the second one begins, the first has ended
        now = await ledger.value("select clock_timestamp()")
        await until(lambda now=now: ledger.value(query, now))


async def count(event: Event, ctx: Context) -> None:
    """A handler without any idempotency of its own: a second application shows."""
    await ctx.db.execute(
        "insert into effects (event_id, handler) values ($1, $2)", event.id, "count"
    )
