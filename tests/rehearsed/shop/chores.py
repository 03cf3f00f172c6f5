"""Jobs that another handler publishes."""

from gateway import Context, Event, handler


@handler("chores")
async def do_a_chore(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into payments (intent) values ($1)", event.payload.get("intent"))
