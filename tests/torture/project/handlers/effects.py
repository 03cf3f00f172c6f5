"""Handlers without any idempotency of their own: a second application shows. The first two take
every event; the others ask for an order, for calls and effects that happen once, for jobs, and for
a pace."""

import asyncio
import os
import time
from typing import Any

import httpx

from gateway import Context, Event, handler

IS_RENAMED = os.environ.get("RENAMED") == "yes"
EFFECT = f"insert into effects (event_id, handler, renamed) values ($1, $2, {IS_RENAMED})"  # noqa: S608 (true or false)
GONE_ON = "insert into gone_on (event_id, because) values ($1, $2)"
SINGLE = "insert into singles (route, subject, event_id) values ($1, $2, $3)"
CALL_S = 1.0


def renamed(name: str) -> dict[str, Any]:
    """In the second version of this project, all handlers but `tally` have other names."""
    if not IS_RENAMED:
        return {}
    return {"name": f"handlers.effects.{name}_renamed", "formerly": [f"handlers.effects.{name}"]}


class Planned(Exception):
    """A failure that the seed asked for."""


@handler("*", **renamed("count"))
async def count(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    if work["savepoint"]:
        async with ctx.db.transaction():
            await ctx.db.execute(EFFECT, event.id, "count")
    else:
        await ctx.db.execute(EFFECT, event.id, "count")
    if work["count_slow_s"]:
        await asyncio.sleep(work["count_slow_s"])
        await ctx.db.execute("select 1")
    _fail(ctx, work["count_fails"])


@handler("*")
async def tally(event: Event, ctx: Context) -> None:
    """Holds one of few rows, which a stopped worker's open transaction keeps from the others."""
    work = event.payload["work"]
    await ctx.db.execute("update tallies set n = n + 1 where shard = $1", work["shard"])
    await asyncio.sleep(work["tally_slow_s"])
    await ctx.db.execute(EFFECT, event.id, "tally")
    _fail(ctx, work["tally_fails"])


@handler("ordered", order_by="work.key", **renamed("ordered"))
async def ordered(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    await ctx.db.execute(EFFECT, event.id, "ordered")
    await asyncio.sleep(work["kit_slow_s"])
    _fail(ctx, work["kit_fails"])


@handler("called", **renamed("called"))
async def called(event: Event, ctx: Context) -> None:
    """Makes one call, and keeps a record of every run that goes on without its outcome."""
    work = event.payload["work"]
    unknown, key = work["unknown"], ctx.idempotency_key("call")
    try:
        result = await ctx.once("call", _call, event, ctx, unknown, event.id, key, unknown=unknown)
    except httpx.HTTPError as error:
        if not work["catches"]:
            raise
        await ctx.db.execute(GONE_ON, event.id, _describe(error))
    else:
        await _note(result, unknown, event, ctx)
    await ctx.db.execute(EFFECT, event.id, "called")
    _fail(ctx, work["kit_fails"])


@handler("charged", **renamed("charged"))
async def charged(event: Event, ctx: Context) -> None:
    """Makes one call for all events of one subject."""
    subject = event.payload["work"]["subject"]
    unknown = subject.partition("-")[0]
    about = f"{event.route}.{subject}"
    key = ctx.idempotency_key("call", per=subject)
    result = await ctx.once(
        "call", _call, event, ctx, unknown, about, key, per=subject, unknown=unknown
    )
    await _note(result, unknown, event, ctx)
    await ctx.db.execute(EFFECT, event.id, "charged")
    _fail(ctx, event.payload["work"]["kit_fails"])


async def _call(event: Event, ctx: Context, unknown: str, about: str, key: str) -> Any:
    work = event.payload["work"]
    url = f"{os.environ['CALLEE_URL']}/{unknown}/{about}/{key}"
    answer = await ctx.http.post(url, headers={"x-replies": work["replies"]}, timeout=CALL_S)
    answer.raise_for_status()
    return answer.json()


async def _note(result: Any, unknown: str, event: Event, ctx: Context) -> None:
    if result is None and unknown == "retry":
        raise RuntimeError("nothing was kept of a call")
    if result is None:
        await ctx.db.execute(GONE_ON, event.id, "skipped")


def _describe(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTPStatusError {error.response.status_code}"
    return type(error).__name__


@handler("single", once_per="work.subject", **renamed("single"))
async def single(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    await ctx.db.execute(SINGLE, event.route, work["subject"], event.id)
    await asyncio.sleep(work["kit_slow_s"])
    _fail(ctx, work["kit_fails"])


@handler("published", **renamed("published"))
async def published(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    await ctx.publish("jobs", {"of": event.id})
    await ctx.db.execute(EFFECT, event.id, "published")
    await asyncio.sleep(work["kit_slow_s"])
    _fail(ctx, work["kit_fails"])


@handler("narrow", concurrency=2, **renamed("narrow"))
async def narrow(event: Event, ctx: Context) -> None:
    """The monotonic clock is one for all processes: a run that is committed had its lease all the
    time from the one reading to the other."""
    began_at = time.monotonic()
    await asyncio.sleep(event.payload["work"]["kit_slow_s"])
    await ctx.db.execute(EFFECT, event.id, "narrow")
    await ctx.db.execute(
        "insert into spans (route, began_at, ended_at) values ($1, $2, $3)",
        event.route,
        began_at,
        time.monotonic(),
    )


@handler("paced", rate="2/500ms", **renamed("paced"))
async def paced(event: Event, ctx: Context) -> None:
    await ctx.db.execute(EFFECT, event.id, "paced")


def _fail(ctx: Context, times: int) -> None:
    if ctx.attempt <= times:
        raise Planned(f"attempt {ctx.attempt} of {times} that fail")
