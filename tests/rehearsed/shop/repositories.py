"""GitHub's events have no time of their own."""

from gateway import Context, Event, handler


@handler("issues.labeled")
async def keep_the_newest(event: Event, ctx: Context) -> None:
    issue = event.payload["issue"]
    await ctx.upsert(
        "customers",
        key={"id": str(issue["id"])},
        values={"email": issue["title"]},
    )


@handler("issues.closed")
async def keep_how_it_was_closed(event: Event, ctx: Context) -> None:
    """It may be reopened, and closed again."""
    issue = event.payload["issue"]
    key, values = {"id": str(issue["id"])}, {"email": issue["title"]}
    await ctx.upsert("customers", key=key, values=values)


@handler("label.created")
async def greet(event: Event, ctx: Context) -> None:
    await ctx.upsert("customers", key={"id": event.id}, values={})
