"""Outside effects through an outage: none is lost without being listed, none is made twice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest

from gateway import Context, Event
from gateway.base.errors import TransitionRefused
from gateway.config.registry import Registry
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.bulk import Action, EffectPolicy
from gateway.ledger.connection import QUERIES
from gateway.ledger.deliveries import KnownEffects, count_effects, replay
from gateway.ledger.effects import confirm_effects, retry_effects
from gateway.ledger.filter import Filter
from gateway.operations.bulk import count_matching
from gateway.operations.inspect import list_unknown_effects
from tests.support.bulk import Clerk, clerk
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.receiver import Receiver, answer, receiving
from tests.support.waiting import PATIENCE_S, until
from tests.support.workers import QUICK, Function, subscribe, working

ONE_TRY = replace(QUICK, attempts=1)
EVENTS = [f"evt_{n}" for n in range(1, 6)]
SENT = answer(200, {"id": "msg_1"})


def mailing(mail: Receiver, **options: Any) -> Function:
    """The handler of the guide: a receipt that must not be sent twice."""

    async def send_receipt(to: str) -> str:
        async with httpx.AsyncClient(base_url=mail.url, timeout=PATIENCE_S) as client:
            response = await client.post("/send", json={"to": to})
            response.raise_for_status()
            return str(response.json()["id"])

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.once("receipt", send_receipt, event.id, **{"unknown": "skip"} | options)

    return handler


def sent(mail: Receiver) -> Counter[str]:
    """How often each receipt was asked for."""
    return Counter(orjson.loads(request.body)["to"] for request in mail.requests)


async def run_all(url: str, ledger: Reader, handler: Function, status: str) -> None:
    """Wait until every delivery has this status.

    The times allowed are long: on a starved machine a call that takes longer than its client, its
    handler or its lease has an unknown outcome, and its delivery completes without it.
    """
    patient = subscribe(handler, timeout=timedelta(seconds=PATIENCE_S))
    async with working(url, patient, lease=timedelta(seconds=PATIENCE_S)):
        await until(lambda: _all(ledger, status))


async def _all(ledger: Reader, status: str) -> bool:
    return await ledger.statuses() == {status: len(EVENTS)}


@pytest.mark.parametrize("status", [401, 404, 422])
async def test_a_request_that_was_refused_is_retried_and_after_that_a_dead_letter(
    database_url: str, ledger: Reader, status: int
) -> None:
    await claim_all(database_url, [make_claim(id) for id in EVENTS])
    async with receiving(answer(status)) as mail:
        await run_all(database_url, ledger, mailing(mail), "dead")
        assert sent(mail) == dict.fromkeys(EVENTS, 3)  # each attempt has called
        mail.replies[:] = [SENT]
        mail.requests.clear()
        for row in await ledger.rows("select id from gateway.deliveries"):
            await ledger.replay(row["id"])
        await run_all(database_url, ledger, mailing(mail), "done")
        assert sent(mail) == dict.fromkeys(EVENTS, 1)


async def test_the_error_of_a_call_leads_to_the_lines_of_the_handler(
    database_url: str, ledger: Reader
) -> None:
    """Between them and httpx, with a dozen frames of its own, there are none of the gateway's."""
    await claim_all(database_url, [make_claim("evt_1")])
    async with receiving() as mail:
        pass  # the port is closed again
    async with working(database_url, subscribe(mailing(mail))):
        await until(lambda: _is_dead(ledger))
    detail = await ledger.value("select error from gateway.attempts where number = 1")
    assert "in handler\n" in detail
    assert "in send_receipt\n" in detail
    assert "gateway/worker/" not in detail


async def test_an_own_exception_that_is_mapped_is_retried(
    database_url: str, ledger: Reader
) -> None:
    class MailError(Exception):
        pass

    calls: list[int] = []

    async def call() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise MailError("the account is locked")
        return "sent"

    async def handler(_: Event, ctx: Context) -> None:
        await ctx.once("receipt", call, unknown="skip", not_done=(MailError,))

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler)):
        await until(lambda: len(calls) == 2)
        await until(lambda: _is_done(ledger))
    assert await ledger.outcomes() == ["retry", "done"]


async def _is_dead(ledger: Reader) -> bool:
    return bool((await ledger.delivery())["status"] == "dead")


async def _is_done(ledger: Reader) -> bool:
    return bool((await ledger.delivery())["status"] == "done")


async def test_a_refusal_after_a_call_that_ended_unknown_proves_nothing(
    database_url: str, ledger: Reader
) -> None:
    """The 500 may have been done, whatever the 401 to the next call says."""
    await claim_all(database_url, [make_claim("evt_1")])
    async with receiving(answer(500), answer(401), SENT) as mail:
        modes = iter(["retry", "retry", "skip"])

        async def handler(event: Event, ctx: Context) -> None:
            await mailing(mail, unknown=next(modes))(event, ctx)

        async with working(database_url, subscribe(handler)):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 2


async def test_receipts_survive_an_outage_of_the_mail_api(
    database_url: str, ledger: Reader
) -> None:
    """500 to all events: deliveries complete, effects are listed, a retry sends each once."""
    await claim_all(database_url, [make_claim(id) for id in EVENTS])
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        await run_all(database_url, ledger, mailing(mail), "done")
        assert sent(mail) == dict.fromkeys(EVENTS, 1)
        listed = await unknown(ann)
        assert {row["event_id"] for row in listed} == set(EVENTS)
        assert {(row["name"], row["error"], row["delivery_status"]) for row in listed} == {
            ("receipt", "HTTPStatusError 500", "done")
        }
        mail.replies[:] = [SENT]
        mail.requests.clear()
        bulk = await ann.do(action=Action.RETRY_EFFECTS)
        assert (bulk["status"], bulk["total"], bulk["moved"]) == ("done", len(EVENTS), len(EVENTS))
        await run_all(database_url, ledger, mailing(mail), "done")
        assert sent(mail) == dict.fromkeys(EVENTS, 1)
        assert await unknown(ann) == []
    audit = await ledger.rows(
        "select actor, effect, reason from gateway.audit where action = 'retry effect'"
    )
    assert [tuple(row.values()) for row in audit] == [("ann", "receipt", "a test")] * len(EVENTS)


async def test_a_retry_in_the_middle_of_the_outage_lists_the_effect_again(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        for calls in (1, 2):
            async with working(database_url, subscribe(mailing(mail))):
                await until(lambda: _is_done(ledger))
            assert len(mail.requests) == calls
            [row] = await unknown(ann)
            if calls == 1:
                await retry_effects(
                    ann.connection, row["delivery_id"], None, actor="ann", reason=None
                )


async def test_bulk_operations_include_those_of_a_time_before_the_clock_was_set_back(
    database_url: str, ledger: Reader
) -> None:
    """Their times are still to come, and an order is for what happened before it was given."""
    await claim_all(database_url, [make_claim(id) for id in EVENTS])
    ahead = timedelta(minutes=10)
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        await run_all(database_url, ledger, mailing(mail), "done")
        await ledger.run("update gateway.effects set unknown_at = now() + $1", ahead)
        await ledger.run(
            "update gateway.deliveries set status = 'dead', finished_at = now() + $1"
            " where event_id = 'evt_1'",
            ahead,
        )
        await ledger.value(QUERIES["set_back"], ahead, timedelta(seconds=1))
        confirmed = await ann.do(Action.CONFIRM_EFFECTS)
        assert confirmed["moved"] == len(EVENTS)
        assert (await ann.do(Action.REPLAY))["moved"] == 1


async def test_a_confirmed_effect_is_done_and_its_call_is_not_made(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        [row] = await unknown(ann)
        await confirm_effects(
            ann.connection, row["delivery_id"], "receipt", actor="ann", reason="seen in their log"
        )
        assert await unknown(ann) == []
        await ledger.replay(row["delivery_id"])
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 1
        with pytest.raises(TransitionRefused, match="has no effect of unknown outcome"):
            await retry_effects(ann.connection, row["delivery_id"], None, actor="ann", reason=None)
    audit = await ledger.row("select * from gateway.audit where action = 'confirm effect'")
    assert (audit["actor"], audit["effect"], audit["reason"], audit["event_id"]) == (
        "ann", "receipt", "seen in their log", "evt_1",
    )  # fmt: skip


async def test_a_confirmed_effect_of_a_dead_letter_is_not_made_by_its_replay(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        handler = subscribe(mailing(mail, unknown="retry"), retry=ONE_TRY)
        async with working(database_url, handler):
            await until(lambda: _is_dead(ledger))
        id = await ledger.value("select id from gateway.deliveries")
        with pytest.raises(TransitionRefused, match=f"gateway replay {id} --effects retry"):
            await _retry_one(ann, id)
        await confirm_effects(ann.connection, id, "receipt", actor="ann", reason="in their log")
        with pytest.raises(TransitionRefused, match="has no effect of unknown outcome"):
            await _retry_one(ann, id)
        await ledger.replay(id)
        async with working(database_url, handler):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 1
    assert await ledger.value("select effect from gateway.audit where action = 'confirm effect'")


async def test_a_retry_makes_only_the_unknown_effect_again(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    calls: list[str] = []

    async def call(name: str) -> None:
        calls.append(name)
        if name == "receipt" and calls.count(name) == 1:
            raise httpx.ReadTimeout("late")

    async def handler(_: Event, ctx: Context) -> None:
        await ctx.once("charge", call, "charge", unknown="skip")
        await ctx.once("receipt", call, "receipt", unknown="skip")

    async with clerk(database_url) as ann, working(database_url, subscribe(handler)):
        await until(lambda: _is_done(ledger))
        delivery_id = (await ledger.delivery())["id"]
        await retry_effects(ann.connection, delivery_id, None, actor="ann", reason=None)
        await until(lambda: calls.count("receipt") == 2)
        await until(lambda: _is_done(ledger))
        assert await unknown(ann) == []
    assert calls == ["charge", "receipt", "receipt"]


async def go_on_without(database_url: str, ledger: Reader, mail: Receiver) -> int:
    """A delivery completes without the outcome of its call; return its id."""
    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(mailing(mail))):
        await until(lambda: _is_done(ledger))
    id: int = (await ledger.delivery())["id"]
    return id


async def _retry_one(ann: Clerk, id: int) -> None:
    await retry_effects(ann.connection, id, None, actor="ann", reason=None)


async def _retry_all(ann: Clerk, _: int) -> None:
    await ann.do(Action.RETRY_EFFECTS)


async def _replay_one(ann: Clerk, id: int) -> None:
    await replay(ann.connection, id, actor="ann", reason=None, retry_effects=True)


@pytest.mark.parametrize("order", [_retry_one, _retry_all, _replay_one])
async def test_a_retry_for_which_the_handler_does_not_ask_any_more_is_listed_again(
    database_url: str, ledger: Reader, order: Callable[[Clerk, int], Awaitable[None]]
) -> None:
    async def silent(_: Event, __: Context) -> None:
        pass

    async with receiving(answer(500), SENT) as mail, clerk(database_url) as ann:
        id = await go_on_without(database_url, ledger, mail)
        await order(ann, id)
        assert await unknown(ann) == []
        async with working(database_url, subscribe(silent)):
            await until(lambda: _is_done(ledger))
        [row] = await unknown(ann)
        assert (row["name"], row["calls"], row["error"]) == ("receipt", 1, "HTTPStatusError 500")
        await order(ann, id)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 2
        assert await unknown(ann) == []


@pytest.mark.parametrize("is_bulk", [True, False])
async def test_a_retry_whose_delivery_another_event_made_needless_is_listed(
    database_url: str, ledger: Reader, is_bulk: bool
) -> None:
    """Its run is skipped by `once_per`, and so it calls nobody."""
    is_broken = True

    async with receiving(answer(500)) as mail, clerk(database_url) as ann:

        async def handler(event: Event, ctx: Context) -> None:
            if event.id == "evt_1":
                await mailing(mail)(event, ctx)
                if is_broken:
                    raise RuntimeError("something else")

        subscription = subscribe(handler, once_per=KeyPath.parse("order"))
        await claim_all(database_url, [make_claim("evt_1", body=b'{"order": 1}')])
        async with working(database_url, subscription):
            await until(lambda: _is_dead(ledger))
            await claim_all(database_url, [make_claim("evt_2", body=b'{"order": 1}')])
            await until(lambda: _stand(ledger, dead=1, done=1))
            is_broken = False
            if is_bulk:
                await ann.do(effects=EffectPolicy.RETRY)
            else:
                query = "select id from gateway.deliveries where status = 'dead'"
                await _replay_one(ann, await ledger.value(query))
            await until(lambda: _stand(ledger, done=2))
        assert len(mail.requests) == 1
        [row] = await unknown(ann)
        assert (row["event_id"], row["error"]) == ("evt_1", "HTTPStatusError 500")


async def _stand(ledger: Reader, **to: int) -> bool:
    return await ledger.statuses() == to


async def test_an_ordered_call_that_is_refused_is_made_again_by_the_next_run(
    database_url: str, ledger: Reader
) -> None:
    """The call before the order is not forgotten: it may have been done."""
    async with receiving(answer(500), answer(401)) as mail, clerk(database_url) as ann:
        id = await go_on_without(database_url, ledger, mail)
        await _retry_one(ann, id)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_dead(ledger))
        assert len(mail.requests) == 1 + 3  # each attempt has called
        assert await count_effects(ann.connection, id) == KnownEffects(kept=0, unknown=0)
        effect = await ledger.row("select status, calls, error from gateway.effects")
        assert tuple(effect.values()) == ("begun", 1, "HTTPStatusError 500")
        mail.replies[:] = [SENT]
        await ledger.replay(id)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 1 + 3 + 1
        assert await unknown(ann) == []


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_retry_whose_delivery_is_discarded_is_listed_again(
    database_url: str, ledger: Reader, is_dead: bool
) -> None:
    async with receiving(answer(500), answer(401)) as mail, clerk(database_url) as ann:
        id = await go_on_without(database_url, ledger, mail)
        await _retry_one(ann, id)
        if is_dead:
            async with working(database_url, subscribe(mailing(mail))):
                await until(lambda: _is_dead(ledger))
            await ann.do(Action.DISCARD)
        else:
            await ledger.discard(id)
        [row] = await unknown(ann)
        assert (row["calls"], row["delivery_status"]) == (1, "discarded")


@pytest.mark.parametrize("way", ["single", "all", "retention"])
async def test_a_dead_letter_that_is_given_up_leaves_its_unknown_effect_on_the_list(
    database_url: str, ledger: Reader, way: str
) -> None:
    async with receiving(answer(500), SENT) as mail, clerk(database_url) as ann:
        await claim_all(database_url, [make_claim("evt_1")])
        async with working(database_url, subscribe(mailing(mail, unknown="retry"), retry=ONE_TRY)):
            await until(lambda: _is_dead(ledger))
        assert await unknown(ann) == []  # it is a dead letter, and a replay calls again
        id = await ledger.value("select id from gateway.deliveries")
        if way == "single":
            await ledger.discard(id)
        elif way == "all":
            await ann.do(Action.DISCARD)
        else:
            given_up = await ann.connection.fetchval(
                QUERIES["expire_dead"], "stripe", timedelta(), 10
            )
            assert given_up == 1
        [row] = await unknown(ann)
        assert (row["error"], row["delivery_status"]) == ("HTTPStatusError 500", "discarded")
        await _retry_one(ann, id)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert sent(mail) == {"evt_1": 2}
        assert await unknown(ann) == []


async def test_a_retry_that_no_run_has_begun_can_be_confirmed_instead(
    database_url: str, ledger: Reader
) -> None:
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        id = await go_on_without(database_url, ledger, mail)
        await _retry_one(ann, id)
        with pytest.raises(TransitionRefused, match="has no effect of unknown outcome"):
            await _retry_one(ann, id)
        await confirm_effects(ann.connection, id, "receipt", actor="ann", reason=None)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 1
        assert await unknown(ann) == []
    actions = await ledger.rows("select action from gateway.audit where effect = 'receipt'")
    assert [row["action"] for row in actions] == ["retry effect", "confirm effect"]


RUN = """
update gateway.deliveries
set status = 'running', runs = runs + 1, lease_token = gen_random_uuid(),
    leased_at = now(), leased_until = now() + interval '1 h'
"""
HAND_BACK = "update gateway.deliveries set status = 'pending', lease_token = null, due_at = now()"


async def test_an_order_is_for_one_call(database_url: str, ledger: Reader) -> None:
    """Its worker is killed in the middle of the call: the next run does not call a third time."""
    async with receiving(answer(500), SENT) as mail, clerk(database_url) as ann:
        id = await go_on_without(database_url, ledger, mail)
        await _retry_one(ann, id)
        await ledger.run(RUN)
        token = await ledger.value("select lease_token from gateway.deliveries")
        begin = (id, token, "receipt", False, None)
        assert (await ledger.row(QUERIES["begin_effect"], *begin))["is_begun"]
        assert not (await ledger.row(QUERIES["begin_effect"], *begin))["is_begun"]
        await ledger.run(HAND_BACK)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 1
        [row] = await unknown(ann)
        assert row["calls"] == 2


async def test_what_a_slow_worker_hears_after_the_order_makes_the_call_needless(
    database_url: str, ledger: Reader
) -> None:
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        id = await go_on_without(database_url, ledger, mail)
        await _retry_one(ann, id)
        token = await ledger.value("select token from gateway.effects")
        finish = (id, "receipt", token, '"msg_1"', None, None)
        assert await ledger.value(QUERIES["finish_effect"], *finish)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == 1
        assert await unknown(ann) == []


async def test_an_effect_of_a_delivery_that_runs_is_not_touched(
    database_url: str, ledger: Reader
) -> None:
    """The run of a replay has skipped it and may still be at its other work."""
    await claim_all(database_url, [make_claim("evt_1")])
    is_replay, skipped, go = False, asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        raise httpx.ReadTimeout("late")

    async def handler(_: Event, ctx: Context) -> None:
        await ctx.once("receipt", fail, unknown="skip")
        if is_replay:
            skipped.set()
            await go.wait()

    async with clerk(database_url) as ann, working(database_url, subscribe(handler)):
        await until(lambda: _is_done(ledger))
        delivery_id = (await ledger.delivery())["id"]
        is_replay = True
        await ledger.replay(delivery_id)
        await skipped.wait()
        with pytest.raises(TransitionRefused, match="is running right now"):
            await retry_effects(ann.connection, delivery_id, None, actor="ann", reason=None)
        go.set()
        await until(lambda: _is_done(ledger))
        assert len(await unknown(ann)) == 1


@pytest.mark.parametrize(
    ("filter", "n"),
    [
        ({"route": "stripe"}, 5),
        ({"route": "github"}, 0),
        ({"effect": "receipt", "error": "500"}, 5),
        ({"error": "503"}, 0),
        ({"effect": "charge"}, 0),
        ({"handler": "handlers.count", "type": "invoice.*"}, 5),
        ({"type": "charge.*"}, 0),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, 0),
        ({"since": datetime(2020, 1, 1, tzinfo=UTC)}, 5),
    ],
)
async def test_filters_list_what_they_move(
    database_url: str, ledger: Reader, filter: dict[str, Any], n: int
) -> None:
    await claim_all(database_url, [make_claim(id, type="invoice.paid") for id in EVENTS])
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        await run_all(database_url, ledger, mailing(mail), "done")
        assert len(await unknown(ann, **filter)) == n
        if n:
            bulk = await ann.do(action=Action.CONFIRM_EFFECTS, **filter)
            assert (bulk["total"], bulk["moved"]) == (n, n)
        assert len(await unknown(ann)) == len(EVENTS) - n


@pytest.mark.parametrize(("effects", "calls"), [(EffectPolicy.KEEP, 1), (EffectPolicy.RETRY, 2)])
async def test_a_replay_of_dead_letters_keeps_or_retries_effects_of_unknown_outcome(
    database_url: str, ledger: Reader, effects: EffectPolicy, calls: int
) -> None:
    """A run makes a charge, is unsure of a receipt, and dies of something else."""
    await claim_all(database_url, [make_claim(id) for id in EVENTS])
    made: Counter[str] = Counter()
    is_broken = True

    async def call(name: str) -> None:
        made[name] += 1
        if name == "receipt" and is_broken:
            raise httpx.ReadTimeout("late")

    async def handler(_: Event, ctx: Context) -> None:
        await ctx.once("charge", call, "charge", unknown="skip")
        await ctx.once("receipt", call, "receipt", unknown="skip")
        if is_broken:
            raise RuntimeError("something else")

    async with clerk(database_url) as ann:
        await run_all(database_url, ledger, handler, "dead")
        is_broken = False
        count = await count_matching(
            ann.connection, Action.REPLAY, Filter(), datetime.now(UTC), lambda: Registry(())
        )
        assert (count.effects.kept, count.effects.unknown) == (len(EVENTS), len(EVENTS))
        bulk = await ann.do(effects=effects)
        assert (bulk["effects"], bulk["effects_kept"], bulk["effects_unknown"]) == (
            effects, len(EVENTS), len(EVENTS),
        )  # fmt: skip
        await run_all(database_url, ledger, handler, "done")
        assert made == {"charge": len(EVENTS), "receipt": calls * len(EVENTS)}
        assert len(await unknown(ann)) == (len(EVENTS) if calls == 1 else 0)


@pytest.mark.parametrize(("retry", "calls"), [(False, 1), (True, 2)])
async def test_a_replay_of_one_delivery_keeps_or_retries_its_unknown_effect(
    database_url: str, ledger: Reader, retry: bool, calls: int
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    async with receiving(answer(500), SENT) as mail, clerk(database_url) as ann:
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        id = (await ledger.delivery())["id"]
        assert await count_effects(ann.connection, id) == KnownEffects(kept=0, unknown=1)
        replayed = await replay(ann.connection, id, actor="ann", reason=None, retry_effects=retry)
        assert replayed.effects == KnownEffects(kept=0, unknown=1)
        async with working(database_url, subscribe(mailing(mail))):
            await until(lambda: _is_done(ledger))
        assert len(mail.requests) == calls
    noted = await ledger.value("select count(*) from gateway.audit where action = 'retry effect'")
    assert noted == calls - 1


async def unknown(ann: Clerk, **filter: Any) -> list[dict[str, Any]]:
    """What `gateway effects` lists, read in pages of two."""
    found: list[dict[str, Any]] = []
    mark: Any = (None, None, None)
    while True:
        page = await list_unknown_effects(ann.connection, Filter(**filter), mark, 2)
        found += page.rows
        if page.rows:
            mark = tuple(page.rows[-1][name] for name in ("unknown_at", "delivery_id", "name"))
        elif page.end is not None:
            mark = page.end
        else:
            return found
