"""Credits, points and totals: what customers have with us."""

from gateway import Context, Event, handler


@handler("checkout.session.completed")
async def top_up(event: Event, ctx: Context) -> None:
    """A bought top-up goes to the account's balance."""
    session = event.payload["data"]["object"]
    account = session["customer"] or session["client_reference_id"] or "guest"
    amount = 500 + (session["amount_total"] or 0)
    booked = await ctx.db.fetchval(
        "insert into topups (session, account, amount) values ($1, $2, $3)"
        " on conflict (session) do nothing returning session",
        session["id"],
        account,
        amount,
    )
    if booked is None:
        return
    await ctx.db.execute(
        "insert into accounts (account) values ($1) on conflict do nothing", account
    )
    balance = await ctx.db.fetchval(
        "select balance from accounts where account = $1 for update", account
    )
    balance = balance + amount
    await ctx.db.execute("update accounts set balance = $2 where account = $1", account, balance)


@handler("invoice.paid")
async def award_points(event: Event, ctx: Context) -> None:
    """Ten points per paid invoice, and one more per euro. The tier follows from the points."""
    invoice = event.payload["data"]["object"]
    customer = invoice["customer"]
    new = await ctx.db.fetchval(
        "insert into club_invoices (invoice, customer) values ($1, $2)"
        " on conflict do nothing returning invoice",
        invoice["id"],
        customer,
    )
    if new is None:
        return
    member = await ctx.db.fetchrow("select points from club_members where customer = $1", customer)
    points = (member["points"] if member else 0) + 10 + invoice["amount_paid"] // 100
    tier = "gold" if points >= 1000 else "silver" if points >= 100 else "basic"
    await ctx.db.execute(
        "insert into club_members (customer, points, tier) values ($1, $2, $3)"
        " on conflict (customer) do update set points = excluded.points, tier = excluded.tier",
        customer,
        points,
        tier,
    )


@handler("invoice.paid", order_by="data.object.customer")
async def stamp_card(event: Event, ctx: Context) -> None:
    """One stamp per paid invoice; after ten the card starts again."""
    invoice = event.payload["data"]["object"]
    customer = invoice["customer"]
    if customer is None:
        return
    if await ctx.db.fetchval("select 1 from stamped_invoices where invoice = $1", invoice["id"]):
        return
    await ctx.upsert(
        "stamped_invoices", key={"invoice": invoice["id"]}, values={"customer": customer}
    )
    stamps = await ctx.db.fetchval("select stamps from stamp_cards where customer = $1", customer)
    await ctx.upsert(
        "stamp_cards", key={"customer": customer}, values={"stamps": ((stamps or 0) + 1) % 10}
    )


@handler("invoice.paid")
async def sum_spending(event: Event, ctx: Context) -> None:
    """What a customer has spent, kept beside the single invoices for the dashboard."""
    invoice = event.payload["data"]["object"]
    await ctx.db.execute("set transaction isolation level serializable")
    await ctx.db.execute(
        "insert into spend_rows (invoice, customer, amount) values ($1, $2, $3)"
        " on conflict (invoice) do nothing",
        invoice["id"],
        invoice["customer"],
        invoice["amount_paid"],
    )
    rows = await ctx.db.fetch(
        "select amount from spend_rows where customer = $1", invoice["customer"]
    )
    await ctx.upsert(
        "spend_totals",
        key={"customer": invoice["customer"]},
        values={"invoices": len(rows), "spent": sum(row["amount"] for row in rows)},
    )


@handler("invoice.paid")
async def sum_turnover(event: Event, ctx: Context) -> None:
    """The turnover with a customer, summed by Postgres from its rows."""
    invoice = event.payload["data"]["object"]
    customer = invoice["customer"]
    await ctx.db.execute("select pg_advisory_xact_lock(hashtextextended($1, 7))", customer)
    await ctx.db.execute(
        "insert into turnover_rows (invoice, customer, amount) values ($1, $2, $3)"
        " on conflict (invoice) do nothing",
        invoice["id"],
        customer,
        invoice["amount_paid"],
    )
    await ctx.db.execute(
        """
        insert into turnover_totals (customer, invoices, turnover)
        select $1, count(*), coalesce(sum(amount), 0) from turnover_rows where customer = $1
        on conflict (customer) do update
        set invoices = excluded.invoices, turnover = excluded.turnover
        """,
        customer,
    )


@handler("invoice.paid")
async def sum_lifetime_value(event: Event, ctx: Context) -> None:
    """The lifetime value of a customer: never added up here, always computed from the rows."""
    invoice = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into lifetime_rows (invoice, customer, amount) values ($1, $2, $3)"
        " on conflict (invoice) do nothing",
        invoice["id"],
        invoice["customer"],
        invoice["amount_paid"],
    )
    await ctx.db.execute(
        """
        insert into lifetime_totals (customer, invoices, value)
        select $1, count(*), coalesce(sum(amount), 0) from lifetime_rows where customer = $1
        on conflict (customer) do update
        set invoices = excluded.invoices, value = excluded.value
        """,
        invoice["customer"],
    )
