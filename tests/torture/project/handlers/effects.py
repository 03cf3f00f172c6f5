"""Handlers without any idempotency of their own: a second application shows. The first two take
every event; the others ask for an order, for calls that happen once, for jobs, and for a pace."""

import asyncio
import os
import time
from typing import Any

import httpx

from gateway import Context, Event, handler

EFFECT = "insert into effects (event_id, handler) values ($1, $2)"


class Planned(Exception):
    """A failure that the seed asked for."""


@handler("*")
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


@handler("ordered", order_by="work.key")
async def ordered(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    await ctx.db.execute(EFFECT, event.id, "ordered")
    await asyncio.sleep(work["kit_slow_s"])
    _fail(ctx, work["kit_fails"])


@handler("called")
async def called(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    result = await ctx.once("call", _call, event, ctx, unknown=work["unknown"])
    if result is None and work["unknown"] == "retry":
        raise RuntimeError("nothing was kept of a call")
    await ctx.db.execute(EFFECT, event.id, "called")
    _fail(ctx, work["kit_fails"])


async def _call(event: Event, ctx: Context) -> Any:
    work = event.payload["work"]
    url = f"{os.environ['CALLEE_URL']}/{work['unknown']}/{event.id}/{ctx.idempotency_key('call')}"
    try:
        answer = await ctx.http.post(url, headers={"x-drop": str(int(work["call_drops"]))})
    except httpx.RemoteProtocolError as error:
        raise Planned("no answer came") from error
    return answer.json()


@handler("published")
async def published(event: Event, ctx: Context) -> None:
    work = event.payload["work"]
    await ctx.publish("jobs", {"of": event.id})
    await ctx.db.execute(EFFECT, event.id, "published")
    await asyncio.sleep(work["kit_slow_s"])
    _fail(ctx, work["kit_fails"])


@handler("narrow", concurrency=2)
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


@handler("paced", rate="2/500ms")
async def paced(event: Event, ctx: Context) -> None:
    await ctx.db.execute(EFFECT, event.id, "paced")


def _fail(ctx: Context, times: int) -> None:
    if ctx.attempt <= times:
        raise Planned(f"attempt {ctx.attempt} of {times} that fail")
