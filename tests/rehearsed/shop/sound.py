"""What must pass, with two different events of one subject, and with services that fail."""

import asyncio

import httpx

from gateway import Context, Defer, Event, NotSent, Reject, Retry, handler


async def mail(ctx: Context, to: str, key: str | None = None) -> str:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = await ctx.http.post("https://mail.example/send", json={"to": to}, headers=headers)
    answer.raise_for_status()
    return "sent"


async def is_granted(event: Event, ctx: Context, customer: str) -> bool:
    """Whether the event has just been given its row."""
    granted = await ctx.db.fetchval(
        "insert into grants values ($1, $2) on conflict do nothing returning true",
        event.id,
        customer,
    )
    return granted is True


async def add_to_what_was_read(event: Event, ctx: Context) -> None:
    """Right only where something keeps other events of the customer away."""
    customer = event.payload["data"]["object"]["customer"]
    if await is_granted(event, ctx, customer):
        have = await ctx.db.fetchval("select credits from credits where customer = $1", customer)
        values = {"credits": (have or 0) + 5}
        await ctx.upsert("credits", key={"customer": customer}, values=values)


@handler("payment_intent.succeeded")
async def let_the_database_add(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]["customer"]
    if await is_granted(event, ctx, customer):
        await ctx.db.execute(
            """
            insert into credits values ($1, 5)
            on conflict (customer) do update set credits = credits.credits + excluded.credits
            """,
            customer,
        )


@handler("payment_intent.succeeded")
async def lock_the_row_first(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]["customer"]
    await ctx.db.execute("insert into credits values ($1) on conflict do nothing", customer)
    await ctx.db.execute("select from credits where customer = $1 for update", customer)
    await add_to_what_was_read(event, ctx)


@handler("payment_intent.succeeded")
async def be_serializable(event: Event, ctx: Context) -> None:
    await ctx.db.execute("set transaction isolation level serializable")
    await add_to_what_was_read(event, ctx)


@handler("payment_intent.succeeded")
async def take_an_advisory_lock(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]["customer"]
    await ctx.db.execute("select pg_advisory_xact_lock(hashtext($1))", customer)
    await add_to_what_was_read(event, ctx)


@handler("payment_intent.succeeded", order_by="data.object.customer")
async def wait_for_the_turn(event: Event, ctx: Context) -> None:
    await add_to_what_was_read(event, ctx)


@handler("payment_intent.succeeded", order_by="data.object.customer")
async def read_and_write_in_turn(event: Event, ctx: Context) -> None:
    """Without any lock: deliveries of one customer never run at the same time."""
    intent = event.payload["data"]["object"]
    if await ctx.db.fetchval("select 1 from grants where event_id = $1", event.id):
        return
    await ctx.upsert("grants", key={"event_id": event.id}, values={"customer": intent["customer"]})
    have = await ctx.db.fetchval(
        "select credits from credits where customer = $1", intent["customer"]
    )
    await ctx.upsert(
        "credits", key={"customer": intent["customer"]}, values={"credits": (have or 0) + 5}
    )


@handler("payment_intent.succeeded", concurrency=1)
async def run_alone(event: Event, ctx: Context) -> None:
    await add_to_what_was_read(event, ctx)


@handler("checkout.session.completed", "checkout.session.async_payment_succeeded")
async def mail_when_paid(event: Event, ctx: Context) -> None:
    if event.payload["data"]["object"]["payment_status"] == "paid":
        await ctx.once("receipt", mail, ctx, "jenny@example.com", unknown="skip")


@handler(
    "checkout.session.completed",
    "checkout.session.async_payment_succeeded",
    once_per="data.object.id",
)
async def mail_once_per_session(event: Event, ctx: Context) -> None:
    await ctx.once("receipt", mail, ctx, "jenny@example.com", unknown="skip")


@handler("customer.subscription.updated", "customer.subscription.deleted")
async def refresh_after_a_statement(event: Event, ctx: Context) -> None:
    """Both events are there by then, and the answer is the newest."""
    subscription = event.payload["data"]["object"]
    await is_granted(event, ctx, subscription["customer"])
    url = f"https://api.stripe.com/v1/subscriptions/{subscription['id']}"
    answer = await ctx.http.get(url)
    answer.raise_for_status()
    values = {"status": answer.json()["status"]}
    await ctx.upsert("subscriptions", key={"id": subscription["id"]}, values=values)


@handler("invoice.payment_failed")
async def tell_answers_apart(event: Event, ctx: Context) -> None:
    headers = {"Idempotency-Key": ctx.idempotency_key()}
    answer = await ctx.http.post("https://dunning.example/calls", headers=headers)
    if answer.status_code >= 500:
        raise Defer("they are down", after=60)
    if answer.is_error:
        raise Reject(f"they refused it: {answer.status_code}")


@handler("payment_intent.succeeded")
async def note_the_failure(event: Event, ctx: Context) -> None:
    try:
        await mail(ctx, "jenny@example.com", ctx.idempotency_key())
    except httpx.HTTPError as error:
        await ctx.upsert("failures", key={"event_id": event.id}, values={"error": str(error)})


@handler("payment_intent.succeeded")
async def send_it_by_another_service(event: Event, ctx: Context) -> None:
    try:
        await mail(ctx, "jenny@example.com", ctx.idempotency_key())
    except httpx.HTTPError:
        headers = {"Idempotency-Key": ctx.idempotency_key("other")}
        answer = await ctx.http.post("https://other.example/send", headers=headers)
        answer.raise_for_status()


@handler("payment_intent.succeeded")
async def do_without_a_profile(event: Event, ctx: Context) -> None:
    """What only asks may fail, if the handler has thought of it."""
    name = "friend"
    try:
        answer = await ctx.http.get("https://crm.example/profile")
        answer.raise_for_status()
        name = answer.json().get("name", "you")
    except httpx.HTTPError:
        ctx.log.debug("no profile")
    await ctx.upsert("subscriptions", key={"id": event.id}, values={"status": name})


@handler("payment_intent.succeeded")
async def store_what_a_skip_returns(event: Event, ctx: Context) -> None:
    """None after an unknown outcome, which `gateway effects` lists."""
    mail_id = await ctx.once("receipt", mail, ctx, "jenny@example.com", unknown="skip")
    await ctx.upsert("subscriptions", key={"id": event.id}, values={"status": mail_id})


@handler("payment_intent.succeeded")
async def retry_with_one_key(event: Event, ctx: Context) -> None:
    for seconds in (1, 60):
        try:
            await mail(ctx, "jenny@example.com", ctx.idempotency_key())
            return
        except httpx.TransportError:
            await asyncio.sleep(seconds)
    raise Retry("no mail")


@handler("invoice.paid", "invoice.payment_succeeded")
async def keep_both_types(event: Event, ctx: Context) -> None:
    await is_granted(event, ctx, event.payload["data"]["object"]["customer"])


@handler("payment_intent.succeeded", once_per="data.object.customer")
async def welcome_once(event: Event, ctx: Context) -> None:
    await ctx.once("welcome", mail, ctx, "jenny@example.com", unknown="skip")


TOKENS: list[str] = []


@handler("payment_intent.succeeded")
async def keep_an_access_token(event: Event, ctx: Context) -> None:
    """What is only asked for anew in another process may be kept in memory."""
    if not TOKENS:
        answer = await ctx.http.post("https://auth.example/token")
        answer.raise_for_status()
        TOKENS.append(str(answer.json()["id"]))
    await mail(ctx, TOKENS[0], ctx.idempotency_key())


@handler("payment_intent.succeeded")
async def mail_once_per_customer(event: Event, ctx: Context) -> None:
    customer = event.payload["data"]["object"]["customer"]
    await ctx.once("welcome", mail, ctx, "jenny@example.com", per=customer, unknown="skip")


@handler("payment_intent.succeeded")
async def mail_once_per_payment(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]["id"]
    await ctx.once("receipt", mail, ctx, "jenny@example.com", per=intent, unknown="skip")


@handler("payment_intent.succeeded")
async def mail_through_a_client(event: Event, ctx: Context) -> None:
    """The client of a resource, as the guide has it."""

    async def send_letter() -> str:
        answer = await ctx.resources.letters.post("/send", json={"to": "jenny@example.com"})
        answer.raise_for_status()
        return str(answer.json()["id"])

    intent = event.payload["data"]["object"]["id"]
    await ctx.once("receipt", send_letter, per=intent, unknown="skip")


@handler("payment_intent.succeeded")
async def call_again_if_the_service_knows_the_key(event: Event, ctx: Context) -> None:
    """An answer to the first call may be lost, and the second one is the same to the service."""

    async def send_or_say_so() -> None:
        headers = {"Idempotency-Key": ctx.idempotency_key("receipt")}
        answer = await ctx.http.post("https://mail.example/send", headers=headers)
        if answer.is_error:
            raise NotSent("the mail API is down")

    await ctx.once("receipt", send_or_say_so, unknown="skip")


@handler("payment_intent.succeeded")
async def put_through_a_client(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]["id"]
    answer = await ctx.resources.letters.put(f"/payments/{intent}", json={"paid": True})
    answer.raise_for_status()
