"""What must be found: mistakes that show when the services that are called fail."""

import asyncio
import smtplib
from collections.abc import AsyncIterator
from contextlib import suppress
from smtplib import SMTP
from typing import Any

import httpx

from gateway import Context, Event, NotSent, Retry, handler, resource


async def send(ctx: Context, key: str | None = None) -> str:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = await ctx.http.post("https://mail.example/send", headers=headers)
    answer.raise_for_status()
    return str(answer.json().get("id"))


@handler("payment_intent.succeeded")
async def ignore_the_answer(event: Event, ctx: Context) -> None:
    async def send_and_hope() -> Any:
        answer = await ctx.http.post("https://mail.example/send")
        return answer.json().get("id")

    await ctx.once("receipt", send_and_hope, unknown="skip")


@handler("payment_intent.succeeded")
async def drop_the_failure(event: Event, ctx: Context) -> None:
    try:
        await send(ctx, ctx.idempotency_key())
    except Exception as error:
        ctx.log.debug("no mail", error=str(error))


@handler("payment_intent.succeeded")
async def drop_it_around_once(event: Event, ctx: Context) -> None:
    """An unknown outcome is listed by `gateway effects`; a refusal is known, and is not."""
    try:
        await ctx.once("receipt", send, ctx, unknown="skip")
    except httpx.HTTPError:
        ctx.log.debug("no mail")


@handler("payment_intent.succeeded")
async def drop_timeouts(event: Event, ctx: Context) -> None:
    with suppress(httpx.TimeoutException):
        await send(ctx, ctx.idempotency_key())


@handler("payment_intent.succeeded")
async def mark_it_as_sent_first(event: Event, ctx: Context) -> None:
    await ctx.upsert("receipts", key={"intent": event.id}, values={"amount": 1})
    try:
        await send(ctx, ctx.idempotency_key())
    except httpx.HTTPStatusError:
        ctx.log.debug("no mail")


@handler("payment_intent.succeeded")
async def retry_by_itself(event: Event, ctx: Context) -> None:
    async def insist() -> str:
        for seconds in (1, 60):
            try:
                return await send(ctx)
            except httpx.TransportError:
                await asyncio.sleep(seconds)
        raise Retry("no mail")

    await ctx.once("receipt", insist, unknown="skip")


@handler("payment_intent.succeeded")
async def give_every_attempt_its_key(event: Event, ctx: Context) -> None:
    await send(ctx, ctx.idempotency_key(f"attempt {ctx.attempt}"))


@handler("payment_intent.succeeded")
async def send_at_the_first_attempt_only(event: Event, ctx: Context) -> None:
    if ctx.attempt == 1:
        await send(ctx, ctx.idempotency_key())


@handler("payment_intent.succeeded")
async def store_the_error(event: Event, ctx: Context) -> None:
    answer = await ctx.http.get("https://crm.example/profile")
    values = {"status": str(answer.json())}
    await ctx.upsert("subscriptions", key={"id": event.id}, values=values)


@handler("payment_intent.succeeded")
async def leave_when_it_is_down(event: Event, ctx: Context) -> None:
    try:
        (await ctx.http.get("https://crm.example/profile")).raise_for_status()
    except httpx.HTTPError:
        return
    await ctx.upsert("receipts", key={"intent": event.id}, values={})


@handler("payment_intent.succeeded")
async def drop_a_refund(event: Event, ctx: Context) -> None:
    intent = event.payload["data"]["object"]
    try:
        await ctx.stripe.v1.refunds.create_async({"payment_intent": intent["id"]})
    except Exception as error:
        ctx.log.debug("no refund", error=str(error))


@handler("payment_intent.succeeded")
async def drop_a_mail(event: Event, ctx: Context) -> None:
    def write() -> None:
        try:
            with SMTP("mail.example") as server:
                server.sendmail("shop@example.com", "jenny@example.com", "thanks")
        except (smtplib.SMTPException, OSError):
            pass

    await ctx.once("receipt", write, unknown="skip")


@handler("payment_intent.succeeded")
async def drop_what_a_resource_says(event: Event, ctx: Context) -> None:
    with suppress(OSError):
        await ctx.resources.mailer.send("jenny@example.com", idempotency_key=event.id)


@handler("payment_intent.succeeded")
async def use_the_result_of_a_skip(event: Event, ctx: Context) -> None:
    mail_id = await ctx.once("receipt", send, ctx, unknown="skip")
    await ctx.upsert("receipts", key={"intent": mail_id.upper()}, values={})


@resource
async def letters() -> AsyncIterator[httpx.AsyncClient]:
    yield httpx.AsyncClient()
    raise AssertionError("a rehearsal opens no resource")


@handler("payment_intent.succeeded")
async def ignore_the_answer_to_a_client(event: Event, ctx: Context) -> None:
    async def send_and_hope() -> str:
        await ctx.resources.letters.post("/send", json={"to": "jenny@example.com"})
        return "sent"

    await ctx.once("receipt", send_and_hope, unknown="skip")


@handler("payment_intent.succeeded")
async def drop_a_refusal_around_once(event: Event, ctx: Context) -> None:
    async def send_letter() -> str:
        answer = await ctx.resources.letters.post("/send", json={"to": "jenny@example.com"})
        answer.raise_for_status()
        return str(answer.json()["id"])

    with suppress(httpx.HTTPStatusError):
        await ctx.once("receipt", send_letter, unknown="skip")


@handler("payment_intent.succeeded")
async def take_every_error_for_not_sent(event: Event, ctx: Context) -> None:
    async def send_or_say_so() -> None:
        answer = await ctx.http.post("https://mail.example/send")
        if answer.is_error:
            raise NotSent("the mail API is down")

    await ctx.once("receipt", send_or_say_so, unknown="skip")


@handler("payment_intent.succeeded")
async def list_timeouts_as_not_done(event: Event, ctx: Context) -> None:
    await ctx.once("receipt", send, ctx, unknown="skip", not_done=(httpx.TimeoutException,))
