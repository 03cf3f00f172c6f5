"""A mail outage on real processes: seen by people wherever they look, and resolved by commands."""

import asyncio
import json
import re
from collections import Counter
from typing import Any, Final

import httpx
import orjson

from tests.support.console import logged_in
from tests.support.ledger import Reader
from tests.support.processes import Project, stripe_request
from tests.support.receiver import Received, Receiver, answer, receiving
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


@handler("checkout.session.*")
async def complete_session(event: Event, ctx: Context) -> None:
    session = event.payload["data"]["object"]["id"]
    await ctx.once("receipt", send_receipt, ctx, session, per=session, unknown="skip")


async def send_receipt(ctx: Context, to: str) -> str:
    answer = await ctx.http.post(os.environ["MAIL_URL"], json={"to": to})
    answer.raise_for_status()
    return str(answer.json()["id"])
'''
HANDLER: Final = "handlers.shop.fulfil_order"
N: Final = 100


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


async def test_calls_that_were_refused_are_dead_letters_and_a_replay_makes_each_once(
    project: Project, ledger: Reader
) -> None:
    """A wrong API key, a path that is not there and a request that is not understood."""
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP)
    ids = [f"evt_{n}" for n in range(N)]
    statuses = (401, 404, 422)

    async def refuse(request: Received, writer: asyncio.StreamWriter) -> None:
        n = int(orjson.loads(request.body)["to"].removeprefix("evt_"))
        writer.write(answer(statuses[n % len(statuses)], connection="close"))

    async with receiving(refuse) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            await serving.post_all([stripe_request(id, "payment_intent.succeeded") for id in ids])
            await until(lambda: _all(ledger, "dead"))
            assert shop.sent() == dict.fromkeys(ids, 3)  # each of the attempts has called
            assert await shop.ask("effects") == []
            groups = await shop.ask("dead", "--group")
            assert sum(group["count"] for group in groups) == N
            assert sorted(group["error"].partition(" from ")[0] for group in groups) == [
                f"HTTPStatusError: HTTP {status} Status" for status in statuses
            ]

            mail.replies[:] = [answer(200, {"id": "msg_1"})]
            mail.requests.clear()
            replayed = await shop.run("replay", "--dead", "--yes", "--reason", "the key is right")
            assert f"{N} replayed" in replayed
            await until(lambda: _all(ledger, "done"))
            assert shop.sent() == dict.fromkeys(ids, 1)


CHARGE: Final = """

@handler("charge.succeeded")
async def thank(event: Event, ctx: Context) -> None:
    await ctx.once("charge", send_receipt, ctx, "charge", unknown="skip")
    if await ctx.once("receipt", send_receipt, ctx, "receipt", unknown="skip") is None:
        raise RuntimeError("the receipt is missing")
"""


async def test_a_replay_says_before_and_after_what_it_does_about_effects(
    project: Project, ledger: Reader
) -> None:
    """One effect was done, the outcome of the other is unknown, and the delivery died of it."""
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP + CHARGE)
    is_broken = True

    async def reply(request: Received, writer: asyncio.StreamWriter) -> None:
        fails = is_broken and orjson.loads(request.body)["to"] == "receipt"
        writer.write(answer(500 if fails else 200, {"id": "msg_1"}, connection="close"))

    ids = ("evt_a", "evt_b")
    async with receiving(reply) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            await serving.post_all([stripe_request(id, "charge.succeeded") for id in ids])
            await until(lambda: _all(ledger, "dead", 2))

            kept = await shop.run("replay", "--dead", "--yes")
            before, _, after = kept.partition("Bulk operation 1 is done: ")
            assert "2 dead letters match." in before
            assert (
                "2 effects that were done are not made again; 2 effects of unknown outcome will not"
                ' be made again if the handler says unknown="skip" (--effects retry makes them'
                " again)." in before
            )
            assert after == (
                "2 replayed; 2 effects done before: not made again;"
                " 2 effects of unknown outcome: left to the handler.\n"
            )
            await until(lambda: _all(ledger, "dead", 2))
            assert shop.sent() == {"charge": 2, "receipt": 2}

            is_broken = False
            retried = await shop.run("replay", "--dead", "--effects", "retry", "--yes")
            before, _, after = retried.partition("Bulk operation 2 is done: ")
            assert (
                "2 effects that were done are not made again;"
                " 2 effects of unknown outcome will be made again." in before
            )
            assert after == (
                "2 replayed; 2 effects done before: not made again;"
                " 2 effects of unknown outcome: to be made again.\n"
            )
            await until(lambda: _all(ledger, "done", 2))
            assert shop.sent() == {"charge": 2, "receipt": 4}


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


async def test_effects_are_resolved_by_the_event_that_the_log_of_the_service_names(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP + CHARGE.replace("charge.succeeded", "*"))
    async with receiving(answer(500)) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            session = "checkout.session.completed"
            await serving.post_all(
                [
                    stripe_request("evt_a", "payment_intent.succeeded"),
                    *(stripe_request(f"evt_{n}", session, object_id="cs_1") for n in (1, 2)),
                ]
            )
            await until(lambda: _counted(ledger, {"done": 3, "dead": 3}))
            by_event = {row["event_id"]: row["delivery_id"] for row in await shop.ask("effects")}
            holder = ({"evt_1", "evt_2"} & by_event.keys()).pop()
            other = "evt_2" if holder == "evt_1" else "evt_1"

            one = await shop.run("effects", "confirm", "evt_a", "--handler", HANDLER)
            assert one == f"delivery {by_event['evt_a']}: receipt: confirmed as done\n"
            sessions = "handlers.shop.complete_session"
            named = ("effects", "confirm", other, "--route", "stripe", "--handler", sessions)
            kept = await shop.run(*named)  # the call is that of the other event
            assert kept == f"delivery {by_event[holder]}: receipt per cs_1: confirmed as done\n"
            assert await shop.ask("effects") == []
            for id, why in (
                ("evt_a", "event evt_a has no effect of unknown outcome"),
                ("evt_gone", "there is no event 'evt_gone'"),
                (str(2**63), f"there is no delivery {2**63}"),
            ):
                narrowed = () if id.isdecimal() else ("--handler", HANDLER)
                ordered = ("effects", "retry", id, *narrowed)
                refused = await asyncio.to_thread(project.run, *ordered, **shop.environ)
                assert (refused.returncode, why in refused.stderr) == (1, True), refused
            mixed = ("effects", "retry", "1", "--handler", HANDLER)
            refused = await asyncio.to_thread(project.run, *mixed, **shop.environ)
            assert (refused.returncode, "for event ids" in refused.stderr) == (2, True), refused


DEAD: Final = """

@handler("charge.succeeded", attempts=1)
async def charge(event: Event, ctx: Context) -> None:
    await ctx.once("charge", send_receipt, ctx, event.id, unknown="retry")
"""


async def test_a_retry_of_a_call_of_a_dead_letter_is_refused_with_the_command_that_makes_it(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP + DEAD)
    async with receiving(answer(500)) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            await serving.post(*stripe_request("evt_a", "charge.succeeded"))
            await until(lambda: _all(ledger, "dead", 1))
            id = str(await ledger.value("select id from gateway.deliveries"))
            replay = f"`gateway replay {id} --effects retry`"
            shown = " ".join((await shop.run("show", "evt_a")).split())
            assert f"{replay} or `gateway effects confirm {id}`" in shown
            for given in ((id,), ("evt_a",), (id, "--effect", "charge")):
                refused = await asyncio.to_thread(
                    project.run, "effects", "retry", *given, **shop.environ
                )
                assert (refused.returncode, replay in refused.stderr) == (1, True), refused
            mail.replies[:] = [answer(200, {"id": "ch_1"})]
            await shop.run(*replay.strip("`").split()[1:])
            await until(lambda: _all(ledger, "done", 1))
            assert shop.sent() == {"evt_a": 2}


async def test_a_call_of_a_dead_letter_is_confirmed_by_its_event_id(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP + DEAD)
    async with receiving(answer(500)) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            ids = ["evt_a", "evt_b"]
            await serving.post_all([stripe_request(id, "charge.succeeded") for id in ids])
            await until(lambda: _all(ledger, "dead", 2))
            [shown] = await shop.ask("show", "evt_a")
            delivery = shown["deliveries"][0]["delivery_id"]
            confirmed = await shop.run("effects", "confirm", "evt_a", "--reason", "in their log")
            assert confirmed == f"delivery {delivery}: charge: confirmed as done\n"
            again = ("effects", "confirm", "evt_a")
            refused = await asyncio.to_thread(project.run, *again, **shop.environ)
            assert (refused.returncode, refused.stdout) == (1, ""), refused
            assert "event evt_a has no effect of unknown outcome" in refused.stderr
            await shop.run("replay", "evt_a")
            await until(lambda: _counted(ledger, {"done": 1, "dead": 1}))
            assert shop.sent() == {"evt_a": 1, "evt_b": 1}
    reasons = await ledger.rows(
        "select event_id, reason from gateway.audit where action = 'confirm effect'"
    )
    assert reasons == [{"event_id": "evt_a", "reason": "in their log"}]


async def _counted(ledger: Reader, statuses: dict[str, int]) -> bool:
    return await ledger.statuses() == statuses


async def test_an_effect_that_another_event_has_is_shown_as_kept(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP)
    async with receiving(answer(500)) as mail, receiving() as alerts:
        shop = Shop(project, mail, alerts)
        with (
            project.process("worker", **shop.environ),
            project.serve(**shop.environ) as serving,
        ):
            await serving.ready()
            for n, kind in enumerate(("completed", "async_payment_succeeded"), 1):
                type = f"checkout.session.{kind}"
                event = stripe_request(f"evt_{n}", type, object_id="cs_1")
                await serving.post_all([event])
                await until(lambda n=n: _all(ledger, "done", n))
            assert shop.sent() == {"cs_1": 1}
            [listed] = await shop.ask("effects")
            assert (listed["event_id"], listed["name"]) == ("evt_1", "receipt per cs_1")
            holder = listed["delivery_id"]
            shown = await shop.run("show", "evt_2")
            assert (
                "once receipt per cs_1: kept: outcome unknown (HTTPStatusError 500), "
                f"called by evt_1; `gateway effects retry {holder}`"
            ) in " ".join(shown.split())

            mail.replies[:] = [answer(200, {"id": "msg_1"})]
            await shop.run("effects", "retry", "--all", "--effect", "receipt", "--yes")
            await until(lambda: _sent_twice(shop, "cs_1"))
            await until(lambda: _all(ledger, "done", 2))
            assert await shop.ask("effects") == []
            assert "kept: done by evt_1" in await shop.run("show", "evt_2")
            [first] = await shop.ask("show", "evt_1")
            [second] = await shop.ask("show", "evt_2")
            [own], [kept] = (e["deliveries"][0]["effects"] for e in (first, second))
            assert (own["key"], own["status"], own["made_by"]) == ("cs_1", "done", None)
            assert (kept["key"], kept["status"], kept["made_by"]) == ("cs_1", "done", holder)
            assert kept["made_by_event"] == "evt_1"
            page = await asyncio.to_thread(_event_page, serving.url, "evt_2")
            text = " ".join(re.sub(r"<[^>]*>", "", page).split())
            assert "once receipt per cs_1: kept: done by evt_1" in text


def _event_page(url: str, event_id: str) -> str:
    with logged_in(url, TOKEN) as console:
        return console.get(f"/console/event?route=stripe&id={event_id}").text


async def _sent_twice(shop: Shop, to: str) -> bool:
    return shop.sent() == {to: 2}


async def _all(ledger: Reader, status: str, n: int = N) -> bool:
    return await ledger.statuses() == {status: n}


async def _is_sent(shop: Shop, ids: list[str]) -> bool:
    return shop.sent() == dict.fromkeys(ids, 1)


async def _measured(url: str) -> bool:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        scraped = Scraped((await client.get(f"{url}/metrics")).text)
    return scraped.values("gateway_unknown_effects", route="stripe", handler=HANDLER) == [N]
