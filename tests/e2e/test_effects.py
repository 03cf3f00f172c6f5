"""A mail outage on real processes: seen by people wherever they look, and resolved by commands."""

import asyncio
import json
from collections import Counter
from typing import Any, Final

import httpx
import orjson

from tests.support.ledger import Reader
from tests.support.processes import Project, stripe_request
from tests.support.receiver import Receiver, answer, receiving
from tests.support.scraping import Scraped
from tests.support.waiting import until

TOKEN: Final = "a-token-for-the-tests-of-effects"
KEY: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ROUTES: Final = """
alerts:
  webhook: {url: env:ALERT_URL, sign: env:ALERT_KEY}
defaults:
  retry: {attempts: 3, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.shop]
"""
SHOP: Final = '''
"""A receipt for each payment, as in the guide."""

import os

from gateway import Context, Event, handler


@handler("payment_intent.succeeded")
async def fulfil_order(event: Event, ctx: Context) -> None:
    await ctx.once("receipt", send_receipt, ctx, event.id, unknown="skip")


async def send_receipt(ctx: Context, to: str) -> str:
    answer = await ctx.http.post(os.environ["MAIL_URL"], json={"to": to})
    answer.raise_for_status()
    return str(answer.json()["id"])
'''
HANDLER: Final = "handlers.shop.fulfil_order"
N: Final = 20


class Shop:
    """The project, the mail API and the receiver of alerts."""

    def __init__(self, project: Project, mail: Receiver, alerts: Receiver) -> None:
        self.project = project
        self.mail = mail
        self.alerts = alerts
        self.environ = {
            "MAIL_URL": mail.url,
            "ALERT_URL": alerts.url,
            "ALERT_KEY": KEY,
            "GATEWAY_ADMIN_TOKEN": TOKEN,
        }

    async def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command, while the receivers go on answering, and return what it printed."""
        result = await asyncio.to_thread(self.project.run, *arguments, **self.environ)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout

    async def ask(self, *arguments: str) -> Any:
        return json.loads(await self.run(*arguments, "--json"))

    def sent(self) -> Counter[str]:
        return Counter(orjson.loads(request.body)["to"] for request in self.mail.requests)


async def test_a_mail_outage_is_seen_everywhere_and_ends_with_one_command(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP)
    ids = [f"evt_{n}" for n in range(N)]
    async with receiving(answer(500)) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            await serving.post_all([stripe_request(id, "payment_intent.succeeded") for id in ids])
            await until(lambda: _all(ledger, "done"))
            listed = await shop.ask("effects")
            assert {row["event_id"] for row in listed} == set(ids)
            assert {row["error"] for row in listed} == {"HTTPStatusError 500"}
            [group] = await shop.ask("effects", "--group")
            assert (group["count"], group["effect"]) == (N, "receipt")

            [status] = await shop.ask("status")
            [state] = [s for s in status["handlers"] if s["handler"] == HANDLER]
            assert state["unknown_effects"] == N
            [attention] = [a for a in status["attention"] if "outcome" in a["text"]]
            assert (attention["level"], f"{N} effects" in attention["text"]) == ("problem", True)
            assert f"`gateway effects retry --all --handler {HANDLER}`" in attention["advice"]
            doctor = await asyncio.to_thread(project.run, "doctor", **shop.environ)
            assert f"outcome of {N} effects" in doctor.stdout + doctor.stderr
            await until(lambda: _measured(serving.url))
            await until(lambda: len(alerts.requests) == 1)
            told = orjson.loads(alerts.requests[0].body)["data"]
            assert (told["kind"], told["handler"]) == ("effects", HANDLER)
            assert told["command"].startswith("gateway effects --route stripe")

            mail.replies[:] = [answer(200, {"id": "msg_1"})]
            mail.requests.clear()
            counted = await shop.run("effects", "retry", "--all", "--dry-run")
            assert f"{N} unknown effects match." in counted
            done = await shop.run(
                *("effects", "retry", "--all", "--yes", "--handler", HANDLER, "--reason", "outage")
            )
            assert f"{N} retried" in done
            await until(lambda: _is_sent(shop, ids))
            await until(lambda: _all(ledger, "done"))
            assert await shop.ask("effects") == []
            assert shop.sent() == dict.fromkeys(ids, 1)
            await until(lambda: len(alerts.requests) == 2)
            assert orjson.loads(alerts.requests[1].body)["type"] == "alert.recovered"
    reasons = await ledger.rows(
        "select reason from gateway.audit where action = 'retry effect' and effect = 'receipt'"
    )
    assert [row["reason"] for row in reasons] == ["outage"] * N


async def test_single_effects_are_resolved_by_the_id_of_their_delivery(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP)
    async with receiving(answer(503)) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            await serving.post_all(
                [stripe_request(id, "payment_intent.succeeded") for id in ("evt_a", "evt_b")],
            )
            await until(lambda: _all(ledger, "done", 2))
            by_event = {row["event_id"]: row["delivery_id"] for row in await shop.ask("effects")}
            mail.replies[:] = [answer(200, {"id": "msg_1"})]
            mail.requests.clear()
            over_http = await shop.run(
                *("effects", "confirm", str(by_event["evt_a"])), "--url", serving.url
            )
            assert over_http == f"delivery {by_event['evt_a']}: receipt: confirmed as done\n"
            shown = await shop.run("show", "evt_b")
            assert "outcome unknown (HTTPStatusError 503)" in shown
            await shop.run("effects", "retry", str(by_event["evt_b"]), "--effect", "receipt")
            await until(lambda: _is_sent(shop, ["evt_b"]))
            await until(lambda: _all(ledger, "done", 2))
            replayed = await shop.run("replay", str(by_event["evt_b"]))
            assert "1 effect that was done is not made again" in replayed
            assert "replayed; 1 effect done before: not made again" in replayed
            await until(lambda: _all(ledger, "done", 2))
            refused = await asyncio.to_thread(
                project.run, "effects", "retry", str(by_event["evt_a"]), **shop.environ
            )
            assert refused.returncode == 1
            assert "has no effect of unknown outcome" in refused.stderr
    assert shop.sent() == {"evt_b": 1}


async def _all(ledger: Reader, status: str, n: int = N) -> bool:
    return await ledger.statuses() == {status: n}


async def _is_sent(shop: Shop, ids: list[str]) -> bool:
    return shop.sent() == dict.fromkeys(ids, 1)


async def _measured(url: str) -> bool:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        scraped = Scraped((await client.get(f"{url}/metrics")).text)
    return scraped.values("gateway_unknown_effects", route="stripe", handler=HANDLER) == [N]
