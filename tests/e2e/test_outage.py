"""A billing project as the guide has it keeps its receipts through an outage of the mail API.

Its owner types `gateway status`, and the commands that `status` suggests, and no others.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
import pytest

from tests.e2e.test_bulk import on_terminal
from tests.support.ports import free_port
from tests.support.processes import Project
from tests.support.waiting import until

RECEIPTS: Final = '''
"""One receipt for each payment."""

import os
from collections.abc import AsyncIterator

import httpx

from gateway import Context, Event, handler, resource


@handler("checkout.session.completed", "checkout.session.async_payment_succeeded")
async def send_receipts(event: Event, ctx: Context) -> None:
    session = event.payload["data"]["object"]
    to = session["customer_details"]["email"]
    await ctx.once("receipt", send_receipt, ctx, event.id, to, per=session["id"], unknown="skip")


async def send_receipt(ctx: Context, reference: str, to: str) -> str:
    answer = await ctx.resources.mailer.post("/send", json={"to": to, "reference": reference})
    answer.raise_for_status()
    return str(answer.json()["id"])


@resource
async def mailer() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ["MAIL_URL"], timeout=1) as client:
        yield client
'''
HANDLER: Final = "handlers.receipts.send_receipts"
RETRY: Final = "retry: {attempts: 12, backoff: exponential, base: 5s, cap: 6h}"
SHORT: Final = "retry: {attempts: 3, backoff: fixed, base: 200ms, cap: 1s}"
SUGGESTED: Final = re.compile(r"`(gateway [^`]+)`")
EACH: Final = 5


class MailService:
    """Somebody else's mail API, with a log of what it has sent."""

    def __init__(self) -> None:
        self.port = free_port()
        self.mode = "sends"
        self.log: list[str] = []
        self.seen: Counter[str] = Counter()
        """Requests, by the mode in which they came."""
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        [length] = re.findall(r"content-length: (\d+)", head)
        reference = orjson.loads(await reader.readexactly(int(length)))["reference"]
        self.seen[self.mode] += 1
        if self.mode in ("sends", "sends, and does not answer"):
            self.log.append(reference)
        if self.mode == "sends, and does not answer":
            await reader.read()  # until the client has given up
        else:
            status = 200 if self.mode == "sends" else int(self.mode)
            body = b'{"id": "msg_1"}'
            writer.write(
                f"HTTP/1.1 {status} Status\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n".encode()
                + body
            )
        writer.close()


class Owner:
    """Someone with a terminal, who types what `gateway status` suggests."""

    def __init__(self, project: Project, mail: MailService) -> None:
        self.project = project
        self.mail = mail
        self.typed: list[str] = []

    async def read(self, *arguments: str) -> Any:
        """For the test's own eyes."""
        result = await asyncio.to_thread(self.project.run, *arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    async def suggestions(self) -> list[str]:
        """The commands that `gateway status` has for dead letters and effects, in its order."""
        [status] = await self.read("status")
        shown = (await asyncio.to_thread(self.project.run, "status")).stdout
        ours = [a for a in status["attention"] if a["see"] in ("dead", "effects")]
        advice = "\n".join(found["advice"] for found in ours)
        commands = SUGGESTED.findall(advice)
        assert all(command in shown for command in commands), shown
        return commands

    async def type(self, command: str) -> None:
        """Type a command, and say yes if it asks."""
        self.typed.append(command)
        words = tuple(command.split()[1:])
        if "retry" in words or "replay" in words:
            code, shown = await asyncio.to_thread(on_terminal, self.project, words, b"y\n")
        else:
            result = await asyncio.to_thread(self.project.run, *words)
            code, shown = result.returncode, result.stderr
        assert code == 0, shown

    async def follow(self) -> None:
        """Type everything that `status` suggests, once."""
        for command in await self.suggestions():
            if command == "gateway effects confirm ID":
                await self.confirm()
            elif command != "gateway discard --dead":  # the choice beside a replay
                await self.type(command)

    async def confirm(self) -> None:
        """Compare the listing with the log of the mail service."""
        effects = await self.read("effects")
        sent = [str(e["delivery_id"]) for e in effects if e["event_id"] in self.mail.log]
        if sent:
            await self.type(f"gateway effects confirm {' '.join(sent)}")

    async def send(self) -> None:
        sending = ("send", "stripe", "checkout.session.completed", "--count", str(EACH))
        sent = await asyncio.to_thread(self.project.run, *sending)
        assert sent.stdout.count('"accepted"') == EACH, sent

    async def send_again(self) -> None:
        """A second event of each session of which the latest events are."""
        for n, first in enumerate(await self.read("events", "--limit", str(EACH))):
            shown = await asyncio.to_thread(self.project.run, "show", first["event_id"], "--body")
            type = "checkout.session.async_payment_succeeded"
            body = json.loads(shown.stdout) | {"id": f"evt_second{n}", "type": type}
            self.project.write(f"second{n}.json", json.dumps(body))
            sending = ("send", "stripe", type, "--body", f"second{n}.json")
            sent = await asyncio.to_thread(self.project.run, *sending)
            assert '"accepted"' in sent.stdout, sent

    async def is_idle(self) -> bool:
        """Whether every delivery is done or dead."""
        events = await self.read("events", "--limit", "1000")
        return all(event["deliveries"].keys() <= {"done", "dead"} for event in events)


@asynccontextmanager
async def billing(newcomer: Project) -> AsyncIterator[Owner]:
    """The project of `gateway init`, with receipts, running."""
    assert newcomer.run("init", "shop").returncode == 0
    newcomer.directory = newcomer.directory / "shop"
    routes = newcomer.directory / "config" / "routes.yaml"
    text = routes.read_text(encoding="utf-8")
    assert RETRY in text
    text = text.replace(RETRY, SHORT)
    text = text.replace("[handlers.billing]", "[handlers.billing, handlers.receipts]")
    routes.write_text(text, encoding="utf-8")
    newcomer.write("handlers/receipts.py", RECEIPTS)
    mail = MailService()
    await mail.open()
    newcomer.environ |= {"MAIL_URL": mail.url, "GATEWAY_SWEEP": "300ms"}
    with newcomer.process("up") as up:
        await up.says("Ready.")
        yield Owner(newcomer, mail)
    mail.close()


@pytest.mark.timeout(300)  # commands on a terminal, each a process from scratch
async def test_no_receipt_is_lost_or_doubled_by_who_types_what_status_suggests(
    newcomer: Project,
) -> None:
    async with billing(newcomer) as owner:
        mail = owner.mail
        await owner.send()
        await until(lambda: len(mail.log) == EACH)

        mail.close()
        await owner.send()  # refused
        await until(owner.is_idle)
        await mail.open()
        for mode in ("500", "401", "sends, and does not answer"):
            mail.mode = mode
            await owner.send()
            await until(lambda mode=mode: mail.seen[mode] >= EACH)
            await until(owner.is_idle)
        await owner.send_again()
        await until(owner.is_idle)
        mail.mode = "503"
        await owner.follow()  # too early: the service is not back yet
        await until(owner.is_idle)

        mail.mode = "sends"
        while await owner.suggestions():
            await owner.follow()
            await until(owner.is_idle)

        events = [event["event_id"] for event in await owner.read("events", "--limit", "1000")]
        firsts = [event for event in events if not event.startswith("evt_second")]
        assert (len(events), len(firsts)) == (6 * EACH, 5 * EACH)
        assert Counter(mail.log) == dict.fromkeys(firsts, 1)
        assert await owner.read("effects") == []
        assert await owner.read("dead") == []
        audit = Counter(row["action"] for row in await owner.read("audit"))
        assert audit["confirm effect"] == EACH
    assert set(owner.typed) >= {
        "gateway dead --group",
        "gateway replay --dead",
        f"gateway effects --handler {HANDLER}",
        f"gateway effects retry --all --handler {HANDLER}",
    }
