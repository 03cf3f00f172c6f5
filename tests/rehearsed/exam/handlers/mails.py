"""Mails to customers."""

import os
from collections.abc import AsyncIterator

import asyncpg
import httpx

from gateway import Context, Event, handler, resource

DATABASE = os.environ.get("GATEWAY_DATABASE_URL", "postgresql://localhost/shop")


@resource
async def mailer() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url="https://mail.example.com") as client:
        yield client


@handler("checkout.session.completed", "checkout.session.async_payment_succeeded")
async def confirm_checkout(event: Event, ctx: Context) -> None:
    """Tell the buyer that the order is confirmed, whichever event says that it is."""
    session = event.payload["data"]["object"]
    to = (session["customer_details"] or {}).get("email") or "orders@example.com"
    await ctx.once(
        "confirmation",
        send,
        ctx,
        to,
        "confirmation",
        session["id"],
        per=session["id"],
        unknown="skip",
    )


@handler("checkout.session.completed", "checkout.session.async_payment_succeeded")
async def send_receipt(event: Event, ctx: Context) -> None:
    """The receipt, with the PDF, when the session is done or the bank has paid."""
    session = event.payload["data"]["object"]
    to = (session["customer_details"] or {}).get("email") or "orders@example.com"
    await ctx.once(
        f"receipt-{session['id']}", send, ctx, to, "receipt", session["id"], unknown="skip"
    )


@handler("invoice.payment_failed")
async def remind(event: Event, ctx: Context) -> None:
    """One reminder per invoice. The flag is committed at once, so that no other run sends, too."""
    invoice = event.payload["data"]["object"]
    connection = await asyncpg.connect(DATABASE)
    try:
        mine = await connection.fetchval(
            "insert into reminders (invoice) values ($1) on conflict do nothing returning invoice",
            invoice["id"],
        )
    finally:
        await connection.close()
    if mine is None:
        return
    await send(ctx, invoice["customer_email"] or "billing@example.com", "reminder", invoice["id"])


async def send(ctx: Context, to: str, template: str, subject: str) -> str | None:
    answer = await ctx.resources.mailer.post(
        "/send", json={"to": to, "template": template, "about": subject}
    )
    answer.raise_for_status()
    return answer.json().get("id")  # type: ignore[no-any-return]
