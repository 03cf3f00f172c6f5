"""The handler that is measured: one row, inserted or converged."""

from gateway import Context, Event, handler


@handler("payment_intent.succeeded")
async def fulfil(event: Event, ctx: Context) -> None:
    await ctx.upsert(
        "orders",
        key={"id": event.id},
        values={"status": "paid", "amount": event.payload["data"]["object"]["amount"]},
        version=event.occurred_at,
    )
