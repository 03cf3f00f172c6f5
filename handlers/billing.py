"""Stripe: orders, subscriptions and invoices follow what Stripe says of them.

Every handler writes a state, never a difference, so that a second run changes nothing, and gives
the state a version, so that an old event that arrives late does not undo a newer one.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from gateway import Context, Event, Reject, handler

# How many steps a state still has before it, on a way that nothing goes back.
# https://docs.stripe.com/invoicing/overview#invoice-statuses
INVOICE_STEPS: Final = {"draft": 3, "open": 2, "uncollectible": 1}
# https://docs.stripe.com/billing/subscriptions/overview#subscription-statuses
SUBSCRIPTION_STEPS: Final = {"incomplete": 2, "canceled": 0, "incomplete_expired": 0}
LIVE: Final = 1
"""Every other subscription: `active` can become `past_due` and `active` again, and end."""


@handler("payment_intent.succeeded")
async def fulfil_order(event: Event, ctx: Context) -> None:
    """The money is there: the order is fulfilled, and no failure can follow."""
    intent = event.payload["data"]["object"]
    await _save_order(ctx, intent, "fulfilled", reached(event))
    # This row is written once. An e-mail is no part of the transaction: send it through ctx.once
    # with per=intent["id"], so that it is sent once per payment, whatever the number of events and
    # runs (docs/handlers.md).


@handler("payment_intent.payment_failed")
async def record_failed_payment(event: Event, ctx: Context) -> None:
    """An attempt to pay failed; the customer may try again with the same payment intent."""
    intent = event.payload["data"]["object"]
    await _save_order(ctx, intent, "failed", reached(event, steps_left=1))


@handler("charge.refunded")
async def record_refund(event: Event, ctx: Context) -> None:
    """How much of an order was given back so far, in columns that no other handler writes.

    Several refunds can share a second. The amount tells which is the last, so here it is part of
    the order, and the statement is our own.
    """
    charge = event.payload["data"]["object"]
    if charge["payment_intent"] is None:
        return  # a charge from before payment intents is no order of ours
    await ctx.db.execute(
        """
        insert into orders as o (payment_intent, refunded, refunded_at) values ($1, $2, $3)
        on conflict (payment_intent) do update
        set refunded = excluded.refunded, refunded_at = excluded.refunded_at
        where (o.refunded_at, o.refunded) <= (excluded.refunded_at, excluded.refunded)
        """,
        charge["payment_intent"],
        charge["amount_refunded"],
        reached(event),
    )


@handler("customer.subscription.*")
async def follow_subscription(event: Event, ctx: Context) -> None:
    """The subscription as it stands. One that was deleted stays, as `canceled`."""
    subscription = event.payload["data"]["object"]
    status = subscription["status"]
    await ctx.upsert(
        "subscriptions",
        key={"id": subscription["id"]},
        values={
            "customer": subscription["customer"],
            "status": status,
            "cancel_at_period_end": subscription["cancel_at_period_end"],
            "metadata": subscription["metadata"],
        },
        version=reached(event, SUBSCRIPTION_STEPS.get(status, LIVE)),
    )


@handler("invoice.*")
async def follow_invoice(event: Event, ctx: Context) -> None:
    """The invoice as it stands. One that is `open` after an attempt waits for another."""
    if event.type == "invoice.upcoming":
        return  # a forecast: no such invoice exists yet
    invoice = event.payload["data"]["object"]
    status = "deleted" if event.type == "invoice.deleted" else invoice["status"]
    await ctx.upsert(
        "invoices",
        key={"id": invoice["id"]},
        values={
            "customer": invoice["customer"],
            "status": status,
            "currency": invoice["currency"],
            "amount_due": invoice["amount_due"],
            "amount_paid": invoice["amount_paid"],
            "attempt_count": invoice["attempt_count"],
        },
        version=reached(event, INVOICE_STEPS.get(status, 0)),
    )


def reached(event: Event, steps_left: int = 0) -> datetime:
    """When a state was reached, by Stripe's clock, and a second earlier per step that is left.

    That clock has steps of a second, and within one an invoice is made, opened and paid, in events
    that arrive in any order. A state that can only come before another counts as earlier.
    """
    if event.occurred_at is None:
        raise Reject("the event has no time: is this route's provider stripe?")
    return event.occurred_at - timedelta(seconds=steps_left)


async def _save_order(
    ctx: Context, intent: Mapping[str, Any], status: str, version: datetime
) -> None:
    """Both payment events write the same columns, so that the newer leaves none of the older."""
    await ctx.upsert(
        "orders",
        key={"payment_intent": intent["id"]},
        values={
            "status": status,
            "amount": intent["amount"],
            "currency": intent["currency"],
            "customer": intent["customer"],
            "failure": (intent["last_payment_error"] or {}).get("code"),
            "metadata": intent["metadata"],
        },
        version=version,
    )
