"""One key is one job, whatever happens in between: kills, racers, a ledger that is away."""

import asyncio
import json
from collections import Counter
from contextlib import ExitStack

import pytest

from gateway.client import Client, Conflict
from tests.support.forked import Death
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request
from tests.support.queues import (
    TOKEN,
    jobs,
    look,
    publish,
    with_queues,
)
from tests.support.waiting import until


async def test_a_job_is_told_from_pending_to_its_end(
    project: Project, ledger: Reader, database_url: str
) -> None:
    with_queues(project)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        await publish(serving, {"payload": 1, "idempotencyKey": "good", "delaySeconds": 0})
        await publish(serving, {"payload": 1, "idempotencyKey": "bad", "type": "bad"})
        await publish(serving, {"payload": 1, "idempotencyKey": "later", "delaySeconds": 86400})
        waiting = (await look(serving, "good")).json()
        assert (waiting["status"], waiting["attempts"], waiting["error"]) == ("pending", 0, None)
        assert [d["handler"] for d in waiting["deliveries"]] == [
            "handlers.jobs.charge",
            "handlers.jobs.pack",
        ]
        with project.process("worker"):
            await until(lambda: _is(serving, "good", "done"))
            await until(lambda: _is(serving, "bad", "dead"))
        done = (await look(serving, "good")).json()
        assert (done["due_at"], done["attempts"], done["queue"]) == (None, 1, "orders")
        dead = (await look(serving, "bad")).json()
        assert {d["handler"][14:]: d["status"] for d in dead["deliveries"]} == {
            "charge": "dead",
            "pack": "done",
        }
        assert "no such card" in dead["error"]
        later = (await look(serving, "later")).json()
        assert (later["status"], later["attempts"]) == ("pending", 0)
        assert later["due_at"] > later["received_at"]
    assert await ledger.value("select count(*) from public.effects where event_id = 'later'") == 0


async def _is(serving: Serving, id: str, status: str) -> bool:
    return bool((await look(serving, id)).json()["status"] == status)


async def test_the_same_publish_50_times_at_once_and_after_a_kill_is_one_job(
    project: Project, ledger: Reader
) -> None:
    with_queues(project)
    project.run("migrate")
    body = json.dumps({"payload": {"order": 9482}, "idempotencyKey": "order:9482:charge"}).encode()
    request = (body, {"authorization": f"Bearer {TOKEN}"})
    statuses: Counter[int] = Counter()
    for _ in range(2):
        with ExitStack() as stack:
            pair = [stack.enter_context(project.serve()) for _ in range(2)]
            await asyncio.gather(*(serving.ready() for serving in pair))
            answers = await asyncio.gather(
                *(serving.post_all([request] * 25, path=jobs()) for serving in pair)
            )
            for serving in pair:
                serving.running.kill()
        for answer in (*answers[0], *answers[1]):
            statuses[answer.status_code] += 1
            assert answer.json()["id"] == "order:9482:charge"
    assert statuses == {201: 1, 200: 99}
    assert await ledger.value("select count(*) from gateway.processed_events") == 1
    handlers = await ledger.rows("select handler from gateway.deliveries order by handler")
    assert [row["handler"] for row in handlers] == ["handlers.jobs.charge", "handlers.jobs.pack"]
    with project.process("worker"):
        await until(lambda: _statuses_are(ledger, done=2))
    done = await ledger.rows("select handler from public.effects order by handler")
    assert [row["handler"] for row in done] == ["charge", "pack"]


async def test_what_cannot_be_made_durable_is_503_and_never_spooled(
    project: Project, ledger: Reader
) -> None:
    with_queues(project)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        await ledger.run("begin; lock table gateway.processed_events in access exclusive mode")
        answer = await publish(serving, {"payload": 1, "idempotencyKey": "a"})
        assert (answer.status_code, answer.json()) == (503, {"error": "UNAVAILABLE"})
        assert int(answer.headers["retry-after"]) > 0
        asked = await look(serving, "a")
        assert (asked.status_code, asked.json()) == (503, {"error": "UNAVAILABLE"})
        await ledger.run("rollback")
        again = await publish(serving, {"payload": 1, "idempotencyKey": "a"})
        assert (again.status_code, again.json()["id"]) in {(201, "a"), (200, "a")}
    assert not list(project.directory.glob(".gateway/receive/spool/*"))


async def test_a_handler_that_holds_a_key_holds_up_no_webhook(
    project: Project, ledger: Reader
) -> None:
    """It publishes, and goes on for long: whoever publishes the same key is told to come again."""
    with_queues(project)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        await ledger.run(
            "begin; insert into gateway.processed_events"
            " (route, event_id, provider, type, received_at, digest)"
            " values ('orders', 'held', 'publish', 'orders', now(), '\\x00')"
        )
        held = asyncio.create_task(publish(serving, {"payload": 1, "idempotencyKey": "held"}))
        others = [
            asyncio.create_task(publish(serving, {"payload": 1, "idempotencyKey": f"free-{n}"}))
            for n in range(20)
        ]
        webhook = await serving.post(*stripe_request("evt_beside"))
        assert webhook.json()["status"] == "accepted"
        assert not held.done()
        assert (await held).status_code == 503
        assert {(await other).status_code for other in others} == {201}
        await ledger.run("rollback")
        assert (await publish(serving, {"payload": 1, "idempotencyKey": "held"})).status_code == 201


PUBLISHER = '''
"""Each webhook is followed by a job, whose key its payload has."""

from gateway import Context, Event, handler


@handler("*")
async def follow(event: Event, ctx: Context) -> None:
    await ctx.publish("orders", {"order": event.id}, key=f"race:{event.id}")
'''


@pytest.mark.parametrize("step", ["claim.verified", "claim.committed", "claim.answering"])
async def test_a_publish_whose_answer_was_lost_is_one_job(
    project: Project, ledger: Reader, step: str
) -> None:
    """serve is killed at every step of the first try; the client comes again, to its successor."""
    with_queues(project)
    project.run("migrate")
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    with project.doomed(Death(step), "serve", GATEWAY_PORT=port) as doomed:
        await Serving(doomed, url).ready()
        async with Client(url, token=TOKEN) as client:
            publishing = asyncio.create_task(client.publish("orders", {"order": 1}))
            await until(lambda: doomed.process.poll() is not None)
            with project.process("serve", GATEWAY_PORT=port) as heir:
                await Serving(heir, url).ready()
                job = await publishing
                again = await client.publish("orders", {"order": 1}, key=job.id)
                with pytest.raises(Conflict):
                    await client.publish("orders", {"order": 2}, key=job.id)
                assert (await client.job("orders", job.id)).status == "pending"
    assert (job.is_new, again.is_new) == (True, False)
    assert await ledger.value("select count(*) from gateway.processed_events") == 1
    assert await ledger.statuses() == {"pending": 2}


async def test_a_handler_and_a_program_that_publish_the_same_keys_make_one_job_each(
    project: Project, ledger: Reader
) -> None:
    with_queues(project)
    project.write("handlers/effects.py", PUBLISHER)
    project.run("migrate")
    ids = [f"evt_{n}" for n in range(40)]
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        async with Client(serving.url, token=TOKEN) as client:
            jobs_made, _ = await asyncio.gather(
                asyncio.gather(
                    *(client.publish("orders", {"order": id}, key=f"race:{id}") for id in ids)
                ),
                serving.post_all([stripe_request(id) for id in ids]),
            )
        await until(lambda: _statuses_are(ledger, done=3 * len(ids)))
    assert [job.id for job in jobs_made] == [f"race:{id}" for id in ids]
    twice = "select event_id, handler from public.effects group by 1, 2 having count(*) > 1"
    assert await ledger.rows(twice) == []
    assert await ledger.effects() == 2 * len(ids)


async def _statuses_are(ledger: Reader, **expected: int) -> bool:
    return await ledger.statuses() == expected


async def test_the_command_publishes_with_the_queues_own_token(
    project: Project, ledger: Reader
) -> None:
    with_queues(project)
    project.run("migrate")
    project.write("order.json", '{"order": 1}')
    with project.serve() as serving:
        await serving.ready()
        at = ("--url", serving.url)
        first = project.run("publish", "orders", "--payload", "order.json", "--key", "a b", *at)
        assert (first.returncode, first.stdout) == (0, "a b: new\n")
        again = project.run(
            "publish", "orders", "--payload", "order.json", "--key", "a b", "--json", *at
        )
        assert json.loads(again.stdout) == {"id": "a b", "status": "duplicate"}
        project.write("order.json", '{"order": 2}')
        refused = project.run("publish", "orders", "--payload", "order.json", "--key", "a b", *at)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "409 CONFLICT" in refused.stderr
        late = ("--delay", "1h", "--type", "order.late")
        done = project.run("publish", "orders", "--payload", "order.json", *late, *at)
        assert done.returncode == 0
        wrong = project.run(
            "publish", "orders", "--payload", "order.json", *at, ORDERS_TOKEN="x" * 20
        )
        assert (wrong.returncode, "401 UNAUTHORIZED" in wrong.stderr) == (1, True)
    assert await ledger.value(
        "select not_before > now() from gateway.deliveries d join gateway.processed_events"
        " using (route, event_id) where type = 'order.late' limit 1"
    )
