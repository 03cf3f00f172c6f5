"""Subscriptions: workspaces, states, items, and the customer's tax."""

import requests

from gateway import Context, Event, handler

PROVISIONING = "https://provisioning.internal.example.com"
TAX = "https://tax.example.com"


@handler("customer.subscription.created")
async def open_workspace(event: Event, ctx: Context) -> None:
    """A new subscription gets its workspace; the service takes the same key once."""
    subscription = event.payload["data"]["object"]
    await ctx.http.post(
        f"{PROVISIONING}/workspaces",
        json={"subscription": subscription["id"], "owner": subscription["customer"]},
        headers={"Idempotency-Key": f"workspace-{subscription['id']}"},
    )
    await ctx.upsert(
        "workspaces",
        key={"subscription": subscription["id"]},
        values={"customer": subscription["customer"], "state": "open"},
    )


@handler("customer.subscription.*")
async def mirror_subscription(event: Event, ctx: Context) -> None:
    """The subscription as it stands; the newest event wins."""
    subscription = event.payload["data"]["object"]
    await ctx.upsert(
        "subscription_state",
        key={"id": subscription["id"]},
        values={
            "status": subscription["status"],
            "cancel_at_period_end": subscription["cancel_at_period_end"],
        },
        version=event.received_at,
    )


@handler("customer.subscription.updated")
async def replace_items(event: Event, ctx: Context) -> None:
    """The items are always replaced as a whole, so nothing old can be left."""
    subscription = event.payload["data"]["object"]
    await ctx.db.execute(
        "delete from subscription_items where subscription = $1", subscription["id"]
    )
    await ctx.db.executemany(
        "insert into subscription_items (subscription, price, quantity) values ($1, $2, $3)",
        [
            (subscription["id"], item["price"]["id"], item.get("quantity"))
            for item in subscription["items"]["data"]
        ],
    )


@handler("customer.subscription.created")
async def choose_primary(event: Event, ctx: Context) -> None:
    """The first subscription of a customer is the primary one: it alone grants the free seat."""
    subscription = event.payload["data"]["object"]
    others = await ctx.db.fetchval(
        "select count(*) from customer_plans where customer = $1 and is_primary"
        " and subscription <> $2",
        subscription["customer"],
        subscription["id"],
    )
    await ctx.db.execute(
        "insert into customer_plans (subscription, customer, is_primary) values ($1, $2, $3)"
        " on conflict (subscription) do nothing",
        subscription["id"],
        subscription["customer"],
        others == 0,
    )


@handler("customer.created", "customer.updated")
async def keep_tax_profile(event: Event, ctx: Context) -> None:
    """The VAT rate of the country in which the customer is."""
    customer = event.payload["data"]["object"]
    country = (customer.get("address") or {}).get("country") or "DE"
    rate = look_up_rate(country)
    await ctx.upsert(
        "tax_profiles",
        key={"customer": customer["id"]},
        values={"country": country, "rate": rate},
        version=event.occurred_at,
    )


def look_up_rate(country: str) -> float:
    answer = requests.get(f"{TAX}/rates/{country}", timeout=10)
    answer.raise_for_status()
    return float(answer.json().get("standard", 0.19))
