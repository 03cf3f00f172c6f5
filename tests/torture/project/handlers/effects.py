"""Handlers without any idempotency of their own: a second application shows."""

import asyncio

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


def _fail(ctx: Context, times: int) -> None:
    if ctx.attempt <= times:
        raise Planned(f"attempt {ctx.attempt} of {times} that fail")
