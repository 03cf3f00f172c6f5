"""Takes the pictures of docs/console.md: `make screenshots`. A made-up shop, a real gateway."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import asyncpg
import httpx
from playwright.sync_api import Page

from tests.support.browser import open_browser
from tests.support.ports import free_port
from tests.support.processes import stripe_request

OUT: Final = Path(__file__).parents[1] / "docs" / "console"
GATEWAY: Final = str(Path(sys.executable).with_name("gateway"))
READY_S: Final = 60
FAILING: Final = """

@handler("invoice.*", attempts=1)
async def book_invoice(event: Event, ctx: Context) -> None:
    invoice = event.payload["data"]["object"]
    if invoice["amount_due"] % 3 == 0:
        raise TimeoutError(f"the bank did not answer within 10 s (invoice {invoice['id']})")
    raise LookupError(f"no account for customer {invoice['customer']}")
"""
HISTORY: Final = """
insert into gateway.{table} ({column}, route, handler, outcome, n, times)
select t, {place}, r.outcome,
       greatest(0, (r.n * (1.3 + sin(extract(epoch from t) / {wave}) + random() / 3))::int),
       array_fill(0, array[30 + (random() * 6)::int]) || greatest(1, r.n)
from generate_series(
    now() - interval '{span}', now() - interval '2 min', interval '{step}') as s (at)
cross join lateral (select date_trunc('{step_name}', s.at, 'UTC') as t) x
cross join (values ('stripe', '', 'accepted', {n} * 40), ('stripe', '', 'duplicate', {n} * 3),
                   ('github', '', 'accepted', {n} * 14), ('stripe', '', 'BAD_SIGNATURE', {n}),
                   ('stripe', '', 'acknowledged', {n} * 43),
                   ('stripe', 'handlers.billing.fulfil_order', 'done', {n} * 36),
                   ('stripe', 'handlers.billing.fulfil_order', 'retry', {n} * 2))
    as r (route, handler, outcome, n)
on conflict do nothing
"""
TOGETHER: Final = """
insert into gateway.tallies (minute, route, handler, outcome, n, times)
select minute, '', case when handler = '' then '' else '*' end, outcome, sum(n), max(times)
from gateway.tallies
where route <> '' and minute < now() - interval '2 min'
group by 1, 3, 4
on conflict do nothing
"""


@contextmanager
def running_shop(directory: Path) -> Iterator[str]:
    """A project as `gateway init` makes it, with a handler that fails."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GATEWAY_")}
    environ["GATEWAY_PORT"] = str(free_port())
    run = {"cwd": directory, "env": environ, "check": True, "stdout": subprocess.DEVNULL}
    starters = ["--provider", "stripe", "--provider", "github"]
    subprocess.run([GATEWAY, "init", ".", *starters], **run)  # type: ignore[call-overload]
    with (directory / "handlers" / "billing.py").open("a") as handlers:
        handlers.write(FAILING)
    log = (directory / "up.log").open("wb")
    up = subprocess.Popen([GATEWAY, "up"], cwd=directory, env=environ, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{environ['GATEWAY_PORT']}"
    try:
        _wait(url)
        for route, type, count in (
            ("stripe", "payment_intent.succeeded", 80),
            ("stripe", "invoice.paid", 24),
            ("github", "pull_request.opened", 12),
        ):
            send = [GATEWAY, "send", route, type, "--count", str(count)]
            subprocess.run(send, **run)  # type: ignore[call-overload]
        _forge(url)
        asyncio.run(_make_history(directory))
        time.sleep(8)  # a sweep tells the causes, and the tallies are written
        yield url
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)
        log.close()


def _forge(url: str) -> None:
    """Signed with another secret, too long ago, and to a path that nobody has."""
    for n, (secret, ago, path) in enumerate(
        (
            ("whsec_of_the_test_mode", timedelta(0), "/webhooks/stripe"),
            ("whsec_of_the_test_mode", timedelta(0), "/webhooks/stripe"),
            ("a github secret", timedelta(minutes=9), "/webhooks/stripe"),
            ("whsec_of_the_test_mode", timedelta(0), "/webhook/stripe"),
        )
    ):
        body, headers = stripe_request(f"evt_refused_{n}", secret=secret, ago=ago)
        httpx.post(url + path, content=body, headers=headers)


def _wait(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise SystemExit("the gateway did not become ready")


async def _make_history(directory: Path) -> None:
    up = json.loads((directory / ".gateway" / "up.json").read_text())
    connection = await asyncpg.connect(up["database_url"])
    try:
        together = "'', case when r.handler = '' then '' else '*' end"
        for table, column, place, span, step, n, wave in (
            ("tallies", "minute", "r.route, r.handler", "1 hour", "1 minute", 1, 700),
            ("tally_hours", "hour", together, "7 days", "1 hour", 60, 14000),
        ):
            await connection.execute(
                HISTORY.format(
                    table=table,
                    column=column,
                    place=place,
                    span=span,
                    step=step,
                    n=n,
                    wave=wave,
                    step_name=step.split()[1],
                )
            )
        await connection.execute(TOGETHER)
    finally:
        await connection.close()


def take(page: Page, url: str) -> None:
    """Every page, as a person at a desk sees it; and two as on a phone, and at night."""
    events = httpx.get(f"{url}/console/events?status=dead").text
    event = events.split('href="/console/event?', 1)[1].split('"', 1)[0].replace("&amp;", "&")
    pages = {
        "overview": "?span=1h",
        "events": "events",
        "event": f"event?{event}",
        "dead": "dead",
        "handlers": "handlers",
        "routes": "routes",
        "rejected": "rejected",
        "reconcile": "reconcile",
        "system": "system",
    }
    for name, path in pages.items():
        page.goto(f"{url}/console/{path}")
        page.wait_for_timeout(200)
        page.screenshot(path=OUT / f"{name}.png")


def take_bulk(page: Page, url: str) -> None:
    """A bulk replay, slow enough to be seen at it."""
    page.goto(f"{url}/console/dead/all?action=replay&handler=handlers.billing.book_invoice")
    page.get_by_label("Reason").fill("the bank is back")
    page.get_by_label("At most so many a second").fill("2")
    page.get_by_role("button", name="Replay").click()
    page.locator("dd", has_text="the bank is back").wait_for()
    page.wait_for_timeout(6_000)  # a live page shows how far it has come by then
    page.screenshot(path=OUT / "bulk.png")


def main() -> None:
    random.seed(7)
    OUT.mkdir(exist_ok=True)
    with (
        TemporaryDirectory() as directory,
        running_shop(Path(directory)) as url,
        open_browser() as browser,
    ):
        take(browser.new_page(viewport={"width": 1280, "height": 800}), url)
        dark = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
        dark.goto(f"{url}/console/?span=24h")
        dark.screenshot(path=OUT / "overview-dark.png")
        phone = browser.new_page(viewport={"width": 390, "height": 800})
        phone.goto(f"{url}/console/dead")
        phone.screenshot(path=OUT / "dead-phone.png")
        take_bulk(browser.new_page(viewport={"width": 1280, "height": 800}), url)
    print(*sorted(file.name for file in OUT.iterdir()))  # noqa: T201 (a script)


if __name__ == "__main__":
    main()
