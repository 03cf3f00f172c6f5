"""Subscribed, so that a push has a delivery too; never run by the bench."""

from gateway import Context, Event, handler


@handler("push")
async def note(event: Event, ctx: Context) -> None: ...
