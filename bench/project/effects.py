"""A handler without any idempotency of its own: a second application is a second row."""

from gateway import Context, Event, handler


@handler("payment_intent.succeeded")
async def log(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id) values ($1)", event.id)
