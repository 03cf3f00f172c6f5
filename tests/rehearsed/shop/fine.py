"""What must pass: each is a way to be right that looks like a mistake at first."""

import asyncio
import time
from datetime import UTC, datetime
from uuid import uuid4

from gateway import Context, Defer, Event, Reject, Retry, handler


async def mail(ctx: Context, to: str, key: str | None = None) -> str:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = await ctx.http.post("https://mail.example/send", json={"to": to}, headers=headers)
    answer.raise_for_status()
    return str(uuid4())


@handler("payment_intent.succeeded", "invoice.paid")
async def keep_a_journal(event: Event, ctx: Context) -> None:
    """Numbers, tokens and times that differ in every run, in a row per event."""
    await ctx.db.execute(
        "insert into journal (event_id, details) values ($1, $2) on conflict do nothing",
        event.id,
        f'{{"at": {int(time.time())}, "run": "{uuid4()}", "id": "{event.id}"}}',
    )


@handler("payment_intent.succeeded")
async def mail_once(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    key = ctx.idempotency_key("receipt")
    await ctx.once("receipt", mail, ctx, intent["receipt_email"], key)


@handler("payment_intent.succeeded")
async def mail_once_without_key(event: Event, ctx: Context) -> None:
    await ctx.once("receipt", mail, ctx, "jenny@example.com")


@handler("payment_intent.succeeded")
async def mail_at_most_once(event: Event, ctx: Context) -> None:
    await ctx.once("receipt", mail, ctx, "jenny@example.com", unknown="skip")


@handler("checkout.session.completed", "checkout.session.async_payment_succeeded")
async def mail_once_per_session(event: Event, ctx: Context) -> None:
    """Two events of one session: one e-mail, under a key that both have."""
    session = event.payload["data"]["object"]
    await ctx.once("receipt", mail_keyed, ctx, per=session["id"])


async def mail_keyed(ctx: Context) -> str:
    return await mail(ctx, "jenny@example.com", ctx.idempotency_key("receipt"))


@handler("payment_intent.succeeded")
async def leave_it_to_the_callee(event: Event, ctx: Context) -> None:
    await mail(ctx, "jenny@example.com", ctx.idempotency_key("receipt"))


@handler("payment_intent.succeeded")
async def publish(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.publish("chores", {"intent": intent["id"]})
    await ctx.publish("chores", {"customer": intent["customer"]}, key=intent["customer"])


@handler("customer.updated")
async def only_look(event: Event, ctx: Context) -> None:
    await ctx.db.fetch("select * from customers")
    await ctx.http.get("https://api.example/customers")


@handler("customer.updated")
async def refresh(event: Event, ctx: Context) -> None:
    """Asks for the object as it is now; the answer is what the event says of it."""
    customer_id = event.payload["data"]["object"]["id"]
    asked_at = datetime.now(UTC)
    answer = await ctx.http.get(f"https://api.stripe.com/v1/customers/{customer_id}")
    await ctx.upsert(
        "subscriptions",
        key={"id": customer_id},
        values={"status": answer.json()["object"]},
        version=asked_at,
    )


@handler("customer.subscription.updated", "customer.subscription.deleted")
async def follow(event: Event, ctx: Context) -> None:
    subscription = event.payload["data"]["object"]
    await ctx.upsert(
        "subscriptions",
        key={"id": subscription["id"]},
        values={"status": subscription["status"]},
        version=event.occurred_at,
    )


@handler("customer.updated")
async def reject(event: Event, ctx: Context) -> None:
    raise Reject("no such customer of ours")


@handler("customer.updated")
async def put_off(event: Event, ctx: Context) -> None:
    raise Defer("the bookkeeping is closed", after=60)


@handler("customer.updated")
async def try_later(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into customers (id) values ($1)", event.id)
    raise Retry("not yet")


@handler("customer.updated")
async def wait_for_the_row(event: Event, ctx: Context) -> None:
    """Where another handler writes first."""
    customer = event.payload["data"]["object"]
    row = await ctx.db.fetchrow("select * from accounts where customer = $1", customer["id"])
    if row is None:
        raise Retry("not there yet")
    await ctx.upsert(
        "customers", key={"id": event.id}, values={"details": {"balance": row["balance"]}}
    )


@handler("customer.updated")
async def read_the_settings(event: Event, ctx: Context) -> None:
    """On a table that the schema fills."""
    assert await ctx.db.fetchval("select value from settings where name = 'currency'")
    await ctx.db.execute("update settings set value = 'usd' where name = 'currency'")


@handler("payment_intent.succeeded")
async def look_then_insert_by_key(event: Event, ctx: Context) -> None:
    """Two at once: the second one fails, is run again, and finds what the first one did."""
    if await ctx.db.fetchval("select true from receipts where intent = $1", event.id) is None:
        await ctx.db.execute("insert into receipts (intent) values ($1)", event.id)


@handler("payment_intent.succeeded")
async def do_two_things_at_once(event: Event, ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        for name in ("one", "two"):
            key = {"intent": f"{event.id} {name}"}
            group.create_task(ctx.upsert("receipts", key=key, values={}))


@handler("customer.created", "customer.updated")
async def put_a_state(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]
    url = f"https://crm.example/{customer['id']}"
    (await ctx.http.put(url, json={"name": customer["name"]})).raise_for_status()


@handler("payment_intent.succeeded")
async def charge_by_stripe(event: Event, ctx: Context) -> None:
    """The writes of ctx.stripe carry a key by default."""
    intent = event.payload["data"]["object"]
    await ctx.stripe.v1.refunds.create_async({"payment_intent": intent["id"]})


@handler("charge.succeeded")
async def keep_what_happens_once(event: Event, ctx: Context) -> None:
    """Of two events that tell of one charge, the first is as good as the second."""
    charge = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into receipts (intent, amount) values ($1, $2) on conflict do nothing",
        charge["id"],
        charge["amount"],
    )


@handler("payment_intent.succeeded")
async def publish_what_happens_once(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.publish("chores", {"amount": intent["amount"]}, key=intent["id"])


@handler("customer.updated")
async def refresh_whatever_comes(event: Event, ctx: Context) -> None:
    """The answer is always the newest, whichever event comes last."""
    customer_id = event.payload["data"]["object"]["id"]
    answer = await ctx.http.get(f"https://api.example/customers/{customer_id}")
    await ctx.upsert("customers", key={"id": customer_id}, values={"email": answer.json()["email"]})


async def send(ctx: Context) -> list[str]:
    sent = await ctx.resources.mailer.send("jenny@example.com", idempotency_key="k")
    return [sent.message_id, ctx.resources.mailer.name]


@handler("customer.updated")
async def keep_an_id_of_a_resource(event: Event, ctx: Context) -> None:
    [message_id, _] = await ctx.once("mail", send, ctx)
    await ctx.upsert("receipts", key={"intent": message_id}, values={})


@handler("payment_intent.succeeded", "charge.dispute.created")
async def thank_for_much(event: Event, ctx: Context) -> None:
    """The amount of no sample."""
    if event.payload["data"]["object"]["amount"] > 10**9:
        await ctx.http.post("https://mail.example/send")
