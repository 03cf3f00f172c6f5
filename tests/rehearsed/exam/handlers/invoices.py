"""Invoices: receipt numbers, revenue, and the second way to the money."""

import asyncio

import httpx

from gateway import Context, Event, handler

BACKUP_PSP = "https://api.backup-psp.example.com"


@handler("invoice.finalized")
async def number_receipt(event: Event, ctx: Context) -> None:
    """The tax office wants numbers without a gap: 1, 2, 3, in the order in which we book."""
    invoice = event.payload["data"]["object"]
    series = (invoice["currency"] or "eur").upper()
    await ctx.db.execute(
        "insert into receipt_series (series) values ($1) on conflict do nothing", series
    )
    last = await ctx.db.fetchval(
        "select last from receipt_series where series = $1 for update", series
    )
    if await ctx.db.fetchval("select number from receipts where invoice = $1", invoice["id"]):
        return
    await ctx.db.execute("update receipt_series set last = $2 where series = $1", series, last + 1)
    await ctx.db.execute(
        "insert into receipts (invoice, series, number) values ($1, $2, $3)",
        invoice["id"],
        series,
        last + 1,
    )


@handler("invoice.paid", "invoice.payment_succeeded", once_per="data.object.customer")
async def book_revenue(event: Event, ctx: Context) -> None:
    """Stripe tells of a paid invoice in two events; we book it when the first of them comes."""
    invoice = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into revenue (invoice, customer, amount) values ($1, $2, $3)"
        " on conflict (invoice) do nothing",
        invoice["id"],
        invoice["customer"],
        invoice["amount_paid"],
    )


@handler("invoice.payment_failed", once_per="data.object.id")
async def collect_elsewhere(event: Event, ctx: Context) -> None:
    """Stripe could not collect: try the other processor, once per invoice."""
    invoice = event.payload["data"]["object"]
    charge = await ctx.once(
        "backup",
        charge_card,
        ctx,
        invoice["customer"],
        invoice["amount_due"],
        invoice["currency"],
        unknown="skip",
    )
    await ctx.upsert("backup_charges", key={"invoice": invoice["id"]}, values={"charge": charge})


async def charge_card(ctx: Context, customer: str, amount: int, currency: str) -> str | None:
    """Their gateway is slow at times, so give it three chances."""
    for pause in (0.2, 0.5, 1.0):
        try:
            answer = await ctx.http.post(
                f"{BACKUP_PSP}/charges",
                json={"customer": customer, "amount": amount, "currency": currency},
                timeout=5,
            )
        except httpx.TimeoutException:
            await asyncio.sleep(pause)
            continue
        answer.raise_for_status()
        return answer.json().get("id")  # type: ignore[no-any-return]
    raise RuntimeError("the backup processor does not answer")
