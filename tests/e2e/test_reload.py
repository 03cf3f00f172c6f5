"""`gateway up --reload`: what is saved takes effect, and a mistake stops nothing."""

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import count

import httpx
import pytest

from tests.support.ledger import Reader
from tests.support.processes import HANDLERS, ROUTES, SCHEMA, Project, Running, stripe_request
from tests.support.waiting import PATIENCE_S, until

HANDLERS_FILE = "handlers/effects.py"


class Reloading:
    """A project under `gateway up --reload`."""

    def __init__(self, project: Project, up: Running, ledger: Reader, url: str) -> None:
        self.project = project
        self.up = up
        self._ledger = ledger
        self._url = url
        self._ids = count(1)

    async def save(self, name: str, text: str, *, told: str) -> str:
        """Saves a file, and waits until something more is said of it."""
        before = len(self.up.output)
        self.project.write(name, text)
        await until(lambda: told in self.up.output[before:] or _ended(self.up))
        return self.up.output[before:]

    async def send(self, type: str = "invoice.paid", path: str = "/webhooks/stripe") -> str:
        """The id of an event that was accepted."""
        event_id = f"evt_{next(self._ids)}"
        body, headers = stripe_request(event_id, type)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            answer = await client.post(self._url + path, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return event_id

    async def notes(self, event_id: str, deliveries: int = 1) -> list[str]:
        """What the handlers wrote for an event, once they are all done."""

        async def done() -> bool:
            query = (
                "select count(*) from gateway.deliveries where event_id = $1 and status = 'done'"
            )
            return bool(await self._ledger.value(query, event_id) == deliveries)

        await until(done)
        query = (
            "select coalesce(note, handler) note from public.effects where event_id = $1 order by n"
        )
        return [str(row["note"]) for row in await self._ledger.rows(query, event_id)]


def _ended(up: Running) -> bool:
    assert up.process.poll() is None, up.output
    return False


@pytest.fixture
async def reloading(project: Project, ledger: Reader) -> AsyncIterator[Reloading]:
    with project.process("up", "--reload") as up:
        await up.says("take effect")
        await up.says("worker_started")  # and has read the files that are about to change
        [url] = re.findall(r"POST (http://[\d.:]+)/webhooks/stripe", up.output)
        yield Reloading(project, up, ledger, url)


def noting(note: str) -> str:
    """The handlers, one of which now leaves a note."""
    plain, noted = "handler) values ($1, 'count')", f"handler, note) values ($1, 'count', '{note}')"
    assert plain in HANDLERS
    return HANDLERS.replace(plain, noted)


NO_MAILER = """
from gateway import resource


@resource
async def mailer():
    raise RuntimeError("no mail server")
    yield
"""


async def test_a_saved_handler_takes_effect_and_a_mistake_leaves_the_last_good_one(
    reloading: Reloading,
) -> None:
    assert await reloading.notes(await reloading.send()) == ["count"]
    told = await reloading.save(HANDLERS_FILE, noting("second"), told="  reloaded handlers/")
    assert re.search(r"reloaded handlers/effects\.py in \d+\.\d s", told)
    assert await reloading.notes(await reloading.send()) == ["second"]

    told = await reloading.save(HANDLERS_FILE, noting("third") + "def broken(:\n", told="goes on")
    errors = re.findall(r"^error: .*$", told, re.MULTILINE)
    assert errors
    assert all("SyntaxError" in e and e.startswith(f"error: {HANDLERS_FILE}:") for e in errors)
    assert "Traceback" not in told
    assert await reloading.notes(await reloading.send()) == ["second"]

    told = await reloading.save(HANDLERS_FILE, noting("third") + NO_MAILER, told="goes on")
    assert "error: `gateway worker` did not start" in told
    assert await reloading.notes(await reloading.send()) == ["second"]

    more = '@handler("customer.created")\nasync def more(event: Event, ctx: Context) -> None: ...\n'
    await reloading.save(HANDLERS_FILE, noting("fourth") + more, told="  reloaded handlers/")
    assert await reloading.notes(await reloading.send("customer.created"), 2) == ["fourth"]


EXTRA = f"{SCHEMA}create table if not exists extra (event_id text primary key);\n"
SHOP_ROUTE = """
  shop:
    provider: stripe
    secrets: [env:SHOP_SECRET]
    handlers: [handlers.shop]
"""
SHOP = """
from gateway import Context, Event, handler


@handler("*")
async def keep(event: Event, ctx: Context) -> None:
    await ctx.upsert("extra", key={"event_id": event.id}, values={})
"""


async def test_a_route_with_its_tables_takes_effect_and_bad_sql_stops_nothing(
    reloading: Reloading, ledger: Reader
) -> None:
    told = await reloading.save("handlers/schema.sql", "create tabel x (n int);", told="goes on")
    assert "error: handlers/schema.sql:1: Postgres refused it" in told
    assert await reloading.notes(await reloading.send()) == ["count"]

    reloading.project.write("handlers/schema.sql", EXTRA)
    told = await reloading.save("config/routes.yaml", ROUTES + SHOP_ROUTE, told="goes on")
    assert "handlers.shop, which does not import" in told
    told = await reloading.save("handlers/shop.py", SHOP, told="  reloaded handlers/")
    assert "reloaded handlers/shop.py in" in told
    sent = reloading.project.run("send", "shop", "invoice.paid")
    assert sent.returncode == 0, sent.stderr
    await until(lambda: ledger.value("select count(*) = 1 from extra"))


async def test_no_request_is_refused_and_no_delivery_lost_while_processes_change(
    reloading: Reloading,
) -> None:
    saving = asyncio.create_task(
        reloading.save(HANDLERS_FILE, noting("second"), told="  reloaded handlers/")
    )
    sent = []
    while not saving.done():  # runs of a second and a half: some are under way when workers change
        sent.append(await reloading.send("slow.one"))
        await asyncio.sleep(0.2)
    await saving
    for event_id in sent:
        notes = sorted(await reloading.notes(event_id, 2))
        assert notes in (["count", "slow"], ["second", "slow"])
    assert await reloading.notes(await reloading.send()) == ["second"]
