"""A handler and a route are renamed: real processes, old and new code, and commands."""

import asyncio
import json
from contextlib import ExitStack
from typing import Final

import httpx

from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, stripe_request
from tests.support.scraping import Scraped
from tests.support.waiting import PATIENCE_S, until

OLD, NEW = "handlers.effects.on_checkout", "handlers.effects.fulfil"
HANDLERS: Final = """
from gateway import Context, Event, handler


@handler("*"{options})
async def {name}(event: Event, ctx: Context) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler, note) values ($1, $2, $3)",
        event.id, "{name}", ctx.idempotency_key(),
    )
"""
ROUTES: Final = """
schema: [handlers/schema.sql]
routes:
  {name}:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
    path: /webhooks/stripe
    formerly: [{formerly}]
"""
EVENTS: Final = 305
EVERYTHING: Final = f"replay --handler {NEW} --since 7d --yes".split()


def write(project: Project, name: str, *, options: str = "", route: str = "stripe") -> None:
    project.write("handlers/effects.py", HANDLERS.format(name=name, options=options))
    formerly = "" if route == "stripe" else "stripe"
    project.write("config/routes.yaml", ROUTES.format(name=route, formerly=formerly))


async def all_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


async def run_under_the_old_name(project: Project, ledger: Reader, n: int) -> None:
    write(project, "on_checkout")
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        await serving.post_all([stripe_request(f"evt_{i:03}") for i in range(n)])
        await until(lambda: all_done(ledger, n))


async def test_what_was_done_under_the_old_name_is_not_done_again(
    project: Project, ledger: Reader
) -> None:
    await run_under_the_old_name(project, ledger, EVENTS)
    write(project, "fulfil")
    checked = project.run("check")
    assert checked.returncode == 0
    assert f"{OLD} has a history in the ledger, and is no handler any more" in checked.stdout
    assert f'formerly=["{OLD}"]' in checked.stdout
    with project.process("worker") as worker:
        await worker.says("worker_started")
        refused = project.run(*EVERYTHING)
        assert refused.returncode == 1
        assert f"{EVENTS} events were done by {OLD}, which no worker has any more" in refused.stderr
    await ledger.run("delete from gateway.handlers where handler = $1", NEW)  # it ran nothing
    write(project, "fulfil", options=f', formerly=["{OLD}"]', route="payments")
    checked = project.run("check")
    assert (checked.returncode, "warning" in checked.stdout) == (0, False), checked.stdout
    assert await ledger.value("select count(*) from gateway.names") == 0
    with project.serve() as serving, project.process("worker") as worker:
        await worker.says("worker_started")
        await serving.ready()
        assert "No events match" in project.run(*EVERYTHING).stdout
        answers = await serving.post_all([stripe_request("evt_000"), stripe_request("evt_new")])
        assert [answer.json()["status"] for answer in answers] == ["duplicate", "accepted"]
        await until(lambda: all_done(ledger, EVENTS + 1))
        again = project.run("replay", "evt_001", "--handler", OLD, "--route", "stripe")
        assert f"({NEW}): replayed" in again.stdout, again.stdout + again.stderr
        await until(lambda: ran_twice(ledger))
        lines = [json.loads(line) for line in worker.output.splitlines() if "delivery_done" in line]
        assert {(line["route"], line["handler"]) for line in lines} == {("payments", NEW)}
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            scraped = Scraped((await client.get(f"{serving.url}/metrics")).text)
        assert scraped.sum("gateway_requests_total", route="payments", outcome="accepted") == 1
        assert "stripe" not in scraped.labels()
    keys = await ledger.rows("select distinct note from public.effects where event_id = 'evt_001'")
    assert len(keys) == 1
    stored = await ledger.rows("select distinct route, handler from gateway.deliveries")
    assert stored == [{"route": "stripe", "handler": OLD}]
    status = project.run("status", "--json").stdout
    assert OLD not in status
    assert NEW in status


async def ran_twice(ledger: Reader) -> bool:
    count = "select count(*) from public.effects where event_id = 'evt_001'"
    return bool(await ledger.value(count) == 2)


async def test_processes_do_not_start_with_two_histories(project: Project, ledger: Reader) -> None:
    await run_under_the_old_name(project, ledger, 1)
    write(project, "fulfil")
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        await serving.post(*stripe_request("evt_new"))
        await until(lambda: all_done(ledger, 2))
    write(project, "fulfil", options=f', formerly=["{OLD}"]')
    for command in ("check", "serve", "worker"):
        ended = project.run(command)
        assert ended.returncode == 2, ended
        assert "their keys and effects cannot be merged" in ended.stderr + ended.stdout


async def test_old_and_new_code_side_by_side_and_back(project: Project, ledger: Reader) -> None:
    write(project, "on_checkout")
    numbers = iter(range(10_000))

    async def send(serving_urls: list[str]) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            requests = [
                (url, stripe_request(f"evt_{next(numbers):04}")) for url in serving_urls * 20
            ]
            answers = await asyncio.gather(
                *(
                    client.post(f"{url}/webhooks/stripe", content=body, headers=headers)
                    for url, (body, headers) in requests
                )
            )
        assert {answer.status_code for answer in answers} == {200}

    with ExitStack() as stack:
        old = stack.enter_context(project.serve())
        old_worker = stack.enter_context(project.process("worker"))
        await old.ready()
        await old_worker.says("worker_started")
        await send([old.url])
        write(project, "fulfil", options=f', formerly=["{OLD}"]', route="payments")
        new = stack.enter_context(project.serve())
        workers = [stack.enter_context(project.process("worker")) for _ in range(2)]
        await asyncio.gather(new.ready(), *(worker.says("worker_started") for worker in workers))
        await send([old.url, new.url])
        for worker in (old_worker, workers[0]):  # at once, in the middle of it
            worker.kill()
        await send([old.url, new.url])
        await until(lambda: all_done(ledger, 100))
        write(project, "on_checkout")  # a rollback
        back = stack.enter_context(project.serve())
        await back.ready()
        with project.process("worker"):
            await send([back.url, new.url])
            await until(lambda: all_done(ledger, 140))
    effects = await ledger.rows("select event_id from public.effects order by event_id")
    assert [row["event_id"] for row in effects] == [f"evt_{n:04}" for n in range(140)]
    stored = await ledger.rows("select distinct route, handler from gateway.deliveries")
    assert stored == [{"route": "stripe", "handler": OLD}]


async def test_check_says_in_one_line_that_the_ledger_cannot_be_asked(project: Project) -> None:
    url = f"postgresql://gateway@127.0.0.1:{free_port()}/gateway"
    checked = project.run("check", GATEWAY_DATABASE_URL=url)
    assert checked.returncode == 0
    assert checked.stdout.count("renamed routes and handlers are not checked") == 1


QUEUES: Final = """
schema: [handlers/schema.sql]
routes:
  {name}:
    provider: publish
    tokens: [env:QUEUE_TOKEN]
    handlers: [handlers.effects]
    formerly: [{formerly}]
"""


async def test_a_renamed_queue_takes_jobs_under_both_names(
    project: Project, ledger: Reader
) -> None:
    token = {"authorization": "Bearer a-token-of-the-suite-0123456789"}
    project.environ["QUEUE_TOKEN"] = "a-token-of-the-suite-0123456789"
    write(project, "on_checkout")
    answers = []
    for name, formerly, paths in (
        ("emails", "", ["emails"]),
        ("mail", "emails", ["emails", "mail"]),
    ):
        project.write("config/routes.yaml", QUEUES.format(name=name, formerly=formerly))
        with project.serve() as serving:
            await serving.ready()
            async with httpx.AsyncClient(base_url=serving.url, headers=token) as client:
                for path in paths:
                    job = {"payload": {"n": 1}, "idempotencyKey": "job_1", "type": "mail.send"}
                    answers.append(await client.post(f"/v1/queues/{path}/jobs", json=job))
                    found = await client.get(f"/v1/queues/{path}/jobs/job_1")
                    assert found.status_code == 200, found.text
    assert [answer.json()["status"] for answer in answers] == ["accepted", *["duplicate"] * 2]
    assert await ledger.value("select count(*) from gateway.processed_events") == 1


FAILING: Final = """
from gateway import Context, Event, handler


@handler("*", attempts=1{options})
async def {name}(event: Event, ctx: Context) -> None:
    raise RuntimeError("not today")
"""
TOKEN: Final = "admin-token-of-the-names-suite"


async def test_every_page_of_the_console_shows_the_current_name(
    project: Project, ledger: Reader
) -> None:
    write(project, "on_checkout")
    project.write("handlers/effects.py", FAILING.format(name="on_checkout", options=""))
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        await serving.post(*stripe_request("evt_1"))
        await until(lambda: is_dead(ledger))
    write(project, "fulfil", route="payments")
    options = f', formerly=["{OLD}"]'
    project.write("handlers/effects.py", FAILING.format(name="fulfil", options=options))
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving, project.process("worker") as worker:
        await serving.ready()
        await worker.says("worker_started")
        own = {"origin": serving.url}
        async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
            await client.post("/console/login", data={"token": TOKEN, "name": "Ann"}, headers=own)
            for path in (
                "/", "/events", "/event?route=payments&id=evt_1", "/dead", "/handlers", "/routes",
                "/system", "/system/doctor", "/bulk", "/dead/all?action=replay&error=not today",
                f"/events?handler={NEW}", f"/dead?route=payments&handler={NEW}",
                f"/dead/all?action=replay&error=not today&handler={NEW}",
            ):  # fmt: skip
                answer = await client.get(f"/console{path}")
                assert answer.status_code == 200, (path, answer.text)
                assert OLD not in answer.text, path
                if path.startswith(("/dead", "/event?", "/handlers")):
                    assert NEW in answer.text, path
            path = f"/console/dead/all?action=replay&error=not today&handler={OLD}&route=stripe"
            assert NEW in (await client.get(path)).text  # former names are understood
            answer = await client.post(
                f"/console/handlers/pause?route=payments&handler={NEW}",
                data={"reason": "a test"},
                headers=own,
            )
            assert answer.status_code == 303
    paused = await ledger.rows("select route, handler from gateway.pauses")
    assert paused == [{"route": "stripe", "handler": OLD}]


async def is_dead(ledger: Reader) -> bool:
    return await ledger.statuses() == {"dead": 1}
