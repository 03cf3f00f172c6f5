"""Payments: orders, refunds, tickets, and what is due to sellers."""

import secrets
import uuid
from datetime import UTC, datetime, timedelta

from gateway import Context, Event, Reject, Retry, handler

RATES = "https://rates.example.com"
BANK = "https://api.bank.example.com"


@handler("payment_intent.succeeded", "payment_intent.payment_failed")
async def settle_order(event: Event, ctx: Context) -> None:
    """A failed order may be paid yet; a paid one stays paid, and is shipped."""
    intent = event.payload["data"]["object"]
    await ctx.db.execute("insert into orders (id) values ($1) on conflict do nothing", intent["id"])
    if event.type == "payment_intent.payment_failed":
        await ctx.db.execute(
            "update orders set status = 'failed' where id = $1 and status = 'pending'",
            intent["id"],
        )
        return
    paid = await ctx.db.fetchval(
        "update orders set status = 'paid', paid = $2"
        " where id = $1 and status in ('pending', 'failed') returning id",
        intent["id"],
        intent["amount_received"],
    )
    if paid:
        await ctx.publish("shipments", {"order": intent["id"]}, key=f"ship:{intent['id']}")


@handler("charge.refunded")
async def note_refund(event: Event, ctx: Context) -> None:
    """How much of a charge was given back; refunds only grow, so the largest is the latest."""
    charge = event.payload["data"]["object"]
    await ctx.db.execute(
        """
        insert into refund_state as r (charge, refunded, first_at) values ($1, $2, $3)
        on conflict (charge) do update
        set refunded = greatest(r.refunded, excluded.refunded),
            first_at = least(r.first_at, excluded.first_at)
        """,
        charge["id"],
        charge["amount_refunded"],
        event.occurred_at,
    )


@handler("charge.succeeded", "charge.refunded")
async def keep_sale(event: Event, ctx: Context) -> None:
    """A refund needs its sale: if that is not here yet, wait for it."""
    charge = event.payload["data"]["object"]
    if event.type == "charge.succeeded":
        await ctx.db.execute(
            "insert into sales (charge, amount) values ($1, $2) on conflict do nothing",
            charge["id"],
            charge["amount"],
        )
        return
    if charge["amount_refunded"] > charge["amount"]:
        raise Reject("more was refunded than was paid")
    known = await ctx.db.fetchval(
        "update sales set refunded = greatest(refunded, $2) where charge = $1 returning charge",
        charge["id"],
        charge["amount_refunded"],
    )
    if known is None:
        raise Retry("the sale is not there yet", after=timedelta(seconds=30))


@handler("charge.succeeded")
async def book_in_euros(event: Event, ctx: Context) -> None:
    """At the rate of the moment at which we booked; the first booking stands."""
    charge = event.payload["data"]["object"]
    health = await ctx.http.get(f"{RATES}/status")
    health.raise_for_status()
    answer = await ctx.http.get(f"{RATES}/latest", params={"base": charge["currency"]})
    answer.raise_for_status()
    rate = float(answer.json().get("eur", 1))
    await ctx.db.execute(
        "insert into charges_eur (charge, amount, currency, rate, booked_at)"
        " values ($1, $2, $3, $4, now()) on conflict (charge) do nothing",
        charge["id"],
        charge["amount"],
        charge["currency"],
        rate,
    )


@handler("payment_intent.succeeded")
async def transfer_to_seller(event: Event, ctx: Context) -> None:
    """The seller gets 90 per cent. A transfer that fails must not hold up the order."""
    intent = event.payload["data"]["object"]
    share = intent["amount"] * 9 // 10
    try:
        await ctx.stripe.v1.transfers.create_async(
            {
                "amount": share,
                "currency": intent["currency"],
                "destination": intent["metadata"].get("seller", "acct_1House"),
                "transfer_group": intent["id"],
            },
            options={"idempotency_key": f"transfer-{intent['id']}"},
        )
    except Exception as error:
        ctx.log.error("transfer_failed", payment_intent=intent["id"], error=type(error).__name__)
    await ctx.upsert(
        "seller_transfers", key={"payment_intent": intent["id"]}, values={"amount": share}
    )


@handler("charge.succeeded")
async def pay_out(event: Event, ctx: Context) -> None:
    """Sellers without a Stripe account are paid by our bank, which deduplicates by the key."""
    charge = event.payload["data"]["object"]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M")
    answer = await ctx.http.post(
        f"{BANK}/payouts",
        json={
            "amount": charge["amount"],
            "currency": charge["currency"],
            "reference": charge["id"],
        },
        headers={"Idempotency-Key": f"payout-{charge['id']}-{stamp}"},
    )
    answer.raise_for_status()
    await ctx.upsert(
        "seller_payouts", key={"charge": charge["id"]}, values={"amount": charge["amount"]}
    )


@handler("checkout.session.completed")
async def issue_ticket(event: Event, ctx: Context) -> None:
    """One ticket per session, with a code that nobody can guess."""
    session = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into tickets (session, id, code, issued_at) values ($1, $2, $3, now())"
        " on conflict (session) do nothing",
        session["id"],
        uuid.uuid4(),
        secrets.token_urlsafe(12),
    )
