"""Jobs that the payments publish: the courier."""

import asyncio

import requests

from gateway import Context, Event, handler

COURIER = "https://courier.example.com"


@handler("shipments")
async def book_courier(event: Event, ctx: Context) -> None:
    """Their library is a blocking one, so it runs in a thread."""
    order = event.payload["order"]
    await asyncio.to_thread(request_pickup, order)
    await ctx.upsert("courier_bookings", key={"order_id": order}, values={})


def request_pickup(order: str) -> None:
    answer = requests.post(
        f"{COURIER}/pickups",
        json={"order": order},
        headers={"Idempotency-Key": f"pickup-{order}"},
        timeout=10,
    )
    answer.raise_for_status()
