"""What must be found."""

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator
from email.message import EmailMessage
from smtplib import SMTP
from uuid import uuid4

from gateway import Context, Event, handler, resource


class Mailer:
    """Would send an e-mail."""

    async def send(self, to: str) -> None:
        raise AssertionError("a rehearsal opens no resource")


@resource
async def mailer() -> AsyncIterator[Mailer]:
    yield Mailer()
    raise AssertionError("a rehearsal opens no resource")


@handler("payment_intent.succeeded")
async def insert_blindly(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into payments (intent, amount) values ($1, $2)", intent["id"], intent["amount"]
    )


@handler("payment_intent.succeeded")
async def insert_by_key(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.db.execute("insert into receipts values ($1, $2)", intent["id"], intent["amount"])


@handler("payment_intent.succeeded")
async def add_up(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.db.execute(
        """
        insert into accounts (customer, balance) values ($1, 1)
        on conflict (customer) do update set balance = accounts.balance + 1
        """,
        intent["customer"],
    )


@handler("payment_intent.succeeded")
async def add_points(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.db.execute(
        "update loyalty set points = points + 1 where customer = $1", intent["customer"]
    )


@handler("payment_intent.succeeded")
async def mail_by_http(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    answer = await ctx.http.post("https://mail.example/send", json={"to": intent["receipt_email"]})
    answer.raise_for_status()


@handler("payment_intent.succeeded")
async def mail_when_new(event: Event, ctx: Context) -> None:
    """Right when run twice in a row; wrong when the worker dies before the commit."""
    is_new = await ctx.db.fetchval(
        "insert into receipts values ($1) on conflict do nothing returning true", event.id
    )
    if is_new:
        (await ctx.http.post("https://mail.example/send")).raise_for_status()


@handler("payment_intent.succeeded")
async def mail_by_smtp(event: Event, ctx: Context) -> None:
    message = EmailMessage()
    message["To"], message["From"] = "jenny@example.com", "shop@example.com"
    with SMTP("mail.example", 25) as server:
        server.starttls()
        server.login("shop", "secret")
        server.send_message(message)


@handler("payment_intent.succeeded")
async def mail_by_thread(event: Event, ctx: Context) -> None:
    server = SMTP("mail.example")
    await asyncio.to_thread(server.sendmail, "shop@example.com", "jenny@example.com", "thanks")


@handler("payment_intent.succeeded")
async def mail_by_resource(event: Event, ctx: Context) -> None:
    await ctx.resources.mailer.send("jenny@example.com")


@handler("customer.updated")
async def let_the_last_one_win(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]
    await ctx.upsert(
        "customers",
        key={"id": customer["id"]},
        values={"email": customer["email"], "details": customer["metadata"]},
    )


@handler("customer.updated", "customer.deleted")
async def forget_what_was_deleted(event: Event, ctx: Context) -> None:
    """A version guards against older state only while the row is there."""
    customer = event.payload["data"]["object"]
    if event.type == "customer.deleted":
        await ctx.db.execute("delete from customers where id = $1", customer["id"])
        return
    await ctx.upsert(
        "customers",
        key={"id": customer["id"]},
        values={"email": customer["email"]},
        version=event.occurred_at,
    )


@handler("customer.subscription.updated")
async def look_then_insert(event: Event, ctx: Context) -> None:
    """Right when run twice in a row; wrong when run twice at once."""
    subscription = event.payload["data"]["object"]
    seat = await ctx.db.fetchrow("select * from seats where subscription = $1", subscription["id"])
    if seat is None:
        await ctx.db.execute("insert into seats values ($1, 'nobody')", subscription["id"])


@handler("customer.updated")
async def call_by_itself(event: Event, ctx: Context) -> None:
    urllib.request.urlopen("http://192.0.2.1:8080/hook", timeout=5)  # noqa: ASYNC210 (the mistake)


@handler("customer.updated")
async def give_every_run_its_key(event: Event, ctx: Context) -> None:
    key = str(uuid4())
    answer = await ctx.http.post("https://api.example/charges", headers={"Idempotency-Key": key})
    answer.raise_for_status()


@handler("customer.updated")
async def stumble(event: Event, ctx: Context) -> None:
    raise KeyError(event.payload["data"]["object"]["no_such_field"])


@handler("file.created")
async def take_what_has_no_sample(event: Event, ctx: Context) -> None:
    raise AssertionError("nothing of this type is there to be run on")


@handler("customer.updated")
async def forget_to_await(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]
    ctx.upsert("customers", key={"id": customer["id"]}, values={})  # type: ignore[unused-coroutine]


@handler("customer.updated")
async def let_the_first_one_win(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into customers (id, email) values ($1, $2) on conflict do nothing",
        customer["id"],
        customer["email"],
    )


@handler("customer.updated")
async def publish_what_changes(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]
    await ctx.publish("chores", {"email": customer["email"]}, key=customer["id"])


@handler("payment_intent.succeeded")
async def overwrite_what_happened_once(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    await ctx.upsert("receipts", key={"intent": intent["id"]}, values={"amount": intent["amount"]})


@handler("customer.updated")
async def mail_behind_a_row(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]
    row = await ctx.db.fetchrow("select * from accounts where customer = $1", customer["id"])
    if row is None:
        return
    (await ctx.http.post("https://mail.example/send")).raise_for_status()


@handler("customer.updated")
async def post_and_forget(event: Event, ctx: Context) -> None:
    task = asyncio.create_task(ctx.http.post("https://mail.example/send"))
    await ctx.db.fetchval("select pg_sleep(0.01)")
    del task


@handler("customer.updated")
async def lack_a_column(event: Event, ctx: Context) -> None:
    key, values = {"intent": event.id}, {"amount": 1}
    await ctx.upsert("receipts", key=key, values=values, version=event.occurred_at)


@handler("customer.updated")
async def lack_an_index(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into seats values ($1) on conflict (subscription) do nothing", "s")


@handler("customer.updated")
async def lack_a_variable(event: Event, ctx: Context) -> None:
    await ctx.http.get(os.environ["NO_SUCH_ADDRESS"])


@handler("customer.updated")
async def pass_a_text_for_a_number(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into receipts values ($1, $2)", event.id, "much")


@handler("customer.updated", "customer.created")
async def read_the_answer(event: Event, ctx: Context) -> None:
    answer = await ctx.http.get("https://sms.example/messages/1")
    await ctx.upsert("receipts", key={"intent": answer.json()["sid"]}, values={})


@handler("customer.updated")
async def ask_by_post(event: Event, ctx: Context) -> None:
    answer = await ctx.http.post("https://api.example/graphql", json={"query": "{ shop }"})
    answer.raise_for_status()
    await ctx.upsert("receipts", key={"intent": event.id}, values={})
