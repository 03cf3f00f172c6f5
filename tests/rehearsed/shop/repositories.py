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
