"""Takes what the handlers publish."""

from gateway import Context, Event, handler


@handler("jobs")
async def job(event: Event, ctx: Context) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler) values ($1, 'job')", event.payload["of"]
    )
