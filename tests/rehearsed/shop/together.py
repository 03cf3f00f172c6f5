"""What must be found: mistakes that show when there are two different events of one subject."""

from gateway import Context, Event, handler


async def is_granted(event: Event, ctx: Context, customer: str) -> bool:
    """Whether the event has just been given its row."""
    granted = await ctx.db.fetchval(
        "insert into grants values ($1, $2) on conflict do nothing returning true",
        event.id,
        customer,
    )
    return granted is True


async def send(ctx: Context, key: str | None = None) -> str:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = await ctx.http.post("https://mail.example/send", headers=headers)
    answer.raise_for_status()
    return str(answer.json().get("id"))


@handler("payment_intent.succeeded")
async def add_to_what_was_read(event: Event, ctx: Context) -> None:
    """Right when one event is run twice; wrong for two events of one customer at once."""
    customer = event.payload["data"]["object"]["customer"]
    if not await is_granted(event, ctx, customer):
        return
    have = await ctx.db.fetchval("select credits from credits where customer = $1", customer) or 0
    await ctx.upsert("credits", key={"customer": customer}, values={"credits": have + 5})


@handler("payment_intent.succeeded", order_by="data.object.id")
async def order_by_another_key(event: Event, ctx: Context) -> None:
    """What is ordered are the intents, and what is changed belongs to the customer."""
    await add_to_what_was_read(event, ctx)


@handler("payment_intent.succeeded")
async def read_before_the_lock(event: Event, ctx: Context) -> None:
    """The first two events make the row one after the other; later ones find it."""
    customer = event.payload["data"]["object"]["customer"]
    if not await is_granted(event, ctx, customer):
        return
    await ctx.db.execute("insert into credits values ($1) on conflict do nothing", customer)
    have = await ctx.db.fetchval("select credits from credits where customer = $1", customer)
    await ctx.db.execute("update credits set credits = $2 where customer = $1", customer, have + 5)


@handler("customer.subscription.created")
async def allow_one_grant(event: Event, ctx: Context) -> None:
    """At most one per customer; each of two at once finds none."""
    customer = event.payload["data"]["object"]["customer"]
    other = await ctx.db.fetchval(
        "select true from grants where customer = $1 and event_id <> $2", customer, event.id
    )
    if other is None:
        await is_granted(event, ctx, customer)


@handler("customer.subscription.updated")
async def compare_versions_by_hand(event: Event, ctx: Context) -> None:
    subscription = event.payload["data"]["object"]
    seen = await ctx.db.fetchval(
        "select version from subscriptions where id = $1", subscription["id"]
    )
    if seen is None or seen < event.occurred_at:
        await ctx.upsert(
            "subscriptions",
            key={"id": subscription["id"]},
            values={"status": subscription["status"], "version": event.occurred_at},
        )


@handler("payment_intent.succeeded")
async def mail_while_not_marked(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    if await ctx.db.fetchval("select true from receipts where intent = $1", intent["id"]):
        return
    await ctx.once("receipt", send, ctx, ctx.idempotency_key("receipt"))
    await ctx.upsert("receipts", key={"intent": intent["id"]}, values={})


@handler("checkout.session.completed", "checkout.session.async_payment_succeeded")
async def mail_for_both_types(event: Event, ctx: Context) -> None:
    await ctx.once("receipt", send, ctx, ctx.idempotency_key("receipt"))


@handler("invoice.paid", "invoice.payment_succeeded")
async def grant_for_both_types(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]["customer"]
    if await is_granted(event, ctx, customer):
        await ctx.db.execute(
            """
            insert into credits values ($1, 5)
            on conflict (customer) do update set credits = credits.credits + 5
            """,
            customer,
        )


REMEMBERED: set[str] = set()


@handler("payment_intent.succeeded")
async def remember_in_memory(event: Event, ctx: Context) -> None:
    if event.id not in REMEMBERED:
        REMEMBERED.add(event.id)
        await send(ctx, ctx.idempotency_key())


async def charge(ctx: Context, amount: int, key: str) -> None:
    answer = await ctx.http.post(
        "https://pay.example/charges", json={"amount": amount}, headers={"Idempotency-Key": key}
    )
    answer.raise_for_status()


@handler("invoice.payment_failed")
async def charge_twice_under_one_key(event: Event, ctx: Context) -> None:
    for amount in (100, 250):
        await charge(ctx, amount, ctx.idempotency_key("charge"))


@handler("invoice.payment_failed")
async def charge_by_customer(event: Event, ctx: Context) -> None:
    """The fee of the customer's second invoice is taken for that of the first one."""
    invoice = event.payload["data"]["object"]
    answer = await ctx.http.post(
        "https://pay.example/fees",
        json={"invoice": invoice["id"]},
        headers={"Idempotency-Key": invoice["customer"]},
    )
    answer.raise_for_status()


@handler("invoice.finalized")
async def publish_by_customer(event: Event, ctx: Context) -> None:
    invoice = event.payload["data"]["object"]
    await ctx.publish("chores", {"invoice": invoice["id"]}, key=invoice["customer"])


@handler("payment_intent.succeeded")
async def write_at_the_first_attempt_only(event: Event, ctx: Context) -> None:
    if ctx.attempt == 1:
        await ctx.upsert("receipts", key={"intent": event.id}, values={})
