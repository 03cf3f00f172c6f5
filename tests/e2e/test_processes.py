"""Real `serve` and `worker` processes: once, through kills, with and without Redis."""

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from gateway.dev.embedded import Redis
from tests.support.forked import Forked
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import (
    STRIPE_SECRET,
    Project,
    github_request,
    stripe_request,
)
from tests.support.waiting import PATIENCE_S, until


def statuses(answers: list[httpx.Response]) -> Counter[str]:
    assert {answer.status_code for answer in answers} == {200}, answers
    return Counter(answer.json()["status"] for answer in answers)


async def done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


def test_a_signal_to_a_process_that_has_just_ended_is_no_error(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for subprocess.Popen: its end is known to the kernel before it is known to the test."""
    with project.process("version") as running:
        running.process.wait(PATIENCE_S)
        with monkeypatch.context() as patch:
            patch.setattr(Forked, "poll", lambda _: None)
            running.process.send_signal(signal.SIGCONT)


async def test_a_hundred_posts_of_one_event_have_one_effect(
    project: Project, ledger: Reader
) -> None:
    with project.serve() as one, project.serve() as two, project.process("worker"):
        await asyncio.gather(one.ready(), two.ready())
        request = stripe_request("evt_1")
        first, second = await asyncio.gather(
            one.post_all([request] * 50), two.post_all([request] * 50)
        )
        assert statuses(first + second) == {"accepted": 1, "duplicate": 99}
        await until(lambda: done(ledger, 1))
        assert await ledger.effects() == 1


async def test_logs_say_which_event_and_delivery_and_neither_secret_nor_payload(
    project: Project, ledger: Reader
) -> None:
    with project.serve() as serving, project.process("worker") as worker:
        await serving.ready()
        await serving.post(*stripe_request("evt_1", extra="what a customer wrote"))
        await serving.post(*stripe_request("evt_2", secret="whsec_of_somebody_else"))
        await worker.says("delivery_done")
        await serving.running.says("event_accepted")
        await serving.running.says("request_refused")
        lines = [json.loads(line) for line in serving.running.output.splitlines()]
        lines += [json.loads(line) for line in worker.output.splitlines()]
    delivery_id = (await ledger.delivery())["id"]
    [accepted] = [line for line in lines if line["event"] == "event_accepted"]
    [delivered] = [line for line in lines if line["event"] == "delivery_done"]
    [refused] = [line for line in lines if line["event"] == "request_refused"]
    assert (accepted["route"], accepted["event_id"]) == ("stripe", "evt_1")
    assert accepted["delivery_ids"] == [delivery_id]
    assert (delivered["route"], delivered["event_id"]) == ("stripe", "evt_1")
    assert delivered["delivery_id"] == delivery_id
    assert (refused["route"], refused["code"]) == ("stripe", "BAD_SIGNATURE")
    for text in (STRIPE_SECRET, "whsec_of_somebody_else", "what a customer wrote"):
        assert text not in str(lines)


@pytest.mark.parametrize("blind", ["serve", "worker"])
async def test_redis_out_of_reach_from_one_side_only_is_no_matter(
    blind: str, project: Project, ledger: Reader
) -> None:
    away = {"GATEWAY_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    sides: dict[str, dict[str, str]] = {"serve": {}, "worker": {}, blind: away}
    with project.serve(**sides["serve"]) as serving, project.process("worker", **sides["worker"]):
        await serving.ready()
        await _send_and_see(serving, ledger, 1)


async def test_crossed_batches_of_two_serve_processes_all_end_in_200(
    project: Project, ledger: Reader
) -> None:
    requests = [stripe_request(f"evt_{n:03}") for n in range(150)]
    with project.serve() as one, project.serve() as two:
        await asyncio.gather(one.ready(), two.ready())
        first, second = await asyncio.gather(one.post_all(requests), two.post_all(requests[::-1]))
    assert statuses(first + second) == {"accepted": 150, "duplicate": 150}
    assert await ledger.statuses() == {"pending": 150}


async def test_a_worker_killed_in_the_middle_of_a_handler_leaves_one_effect(
    project: Project, ledger: Reader
) -> None:
    project.hold()
    with project.serve() as serving, project.process("worker") as worker:
        await serving.ready()
        await serving.post(*stripe_request("evt_1", "slow.event"))
        await until(lambda: _running(ledger))
        worker.kill()
        project.let_go()
        with project.process("worker"):
            await until(lambda: done(ledger, 2))
    found = await ledger.rows("select handler from public.effects order by handler")
    assert [row["handler"] for row in found] == ["count", "slow"]
    assert "lost" in await ledger.outcomes()


async def _running(ledger: Reader) -> bool:
    return bool(
        await ledger.value(
            "select 1 from gateway.deliveries where status = 'running' and handler like '%slow'"
        )
    )


async def test_serve_killed_right_after_its_answers_loses_nothing(
    project: Project, ledger: Reader
) -> None:
    with project.serve() as serving:
        await serving.ready()
        answers = await serving.post_all([stripe_request(f"evt_{n}") for n in range(50)])
        serving.running.kill()
    assert statuses(answers) == {"accepted": 50}
    with project.process("worker"):
        await until(lambda: done(ledger, 50))
    assert await ledger.effects() == 50


async def test_without_redis_events_are_accepted_and_processed(
    project: Project, ledger: Reader, engine_dir: Path
) -> None:
    """Killed, restarted empty, away from the start: neither process ends because Redis did."""
    own = Redis(engine_dir / "redis-to-break", durable=False)
    own.start()
    away = {"GATEWAY_REDIS_URL": own.url}
    try:
        with project.serve(**away) as serving, project.process("worker", **away) as worker:
            await serving.ready()
            await worker.says("worker_started")
            await _send_and_see(serving, ledger, 1)
            own.kill()
            await _send_and_see(serving, ledger, 2)
            own.start()
            await _send_and_see(serving, ledger, 3)
            own.stop()
            await _send_and_see(serving, ledger, 4)
            assert worker.process.poll() is None
            assert serving.running.process.poll() is None
        with project.serve(**away) as serving, project.process("worker", **away) as worker:
            await serving.ready()
            await _send_and_see(serving, ledger, 5)
            assert worker.process.poll() is None
    finally:
        own.stop()


async def _send_and_see(serving: object, ledger: Reader, n: int) -> None:
    answer = await serving.post(*stripe_request(f"evt_{n}"))  # type: ignore[attr-defined]
    assert answer.json() == {"status": "accepted", "event_id": f"evt_{n}"}
    await until(lambda: done(ledger, n))
    assert await ledger.effects() == n


async def test_a_full_redis_only_delays(project: Project, ledger: Reader, engine_dir: Path) -> None:
    from redis.asyncio import Redis as Client

    own = Redis(engine_dir / "redis-to-fill", durable=False)
    own.start()
    full = {"GATEWAY_REDIS_URL": own.url}
    client = Client.from_url(own.url)
    try:
        await client.config_set("maxmemory", "1")
        with project.serve(**full) as serving, project.process("worker", **full) as worker:
            await serving.ready()
            await _send_and_see(serving, ledger, 1)
            assert worker.process.poll() is None
    finally:
        await client.aclose()
        own.stop()


async def test_flushall_loses_nothing(project: Project, ledger: Reader, redis_url: str) -> None:
    from redis.asyncio import Redis as Client

    with project.serve() as serving:
        await serving.ready()
        answers = await serving.post_all([stripe_request(f"evt_{n}") for n in range(30)])
    client = Client.from_url(redis_url)
    assert await client.zcard("arq:queue") > 0
    await client.flushall()
    await client.aclose()
    assert statuses(answers) == {"accepted": 30}
    with project.process("worker"):
        await until(lambda: done(ledger, 30))
    assert await ledger.effects() == 30


async def test_sigterm_hands_back_and_the_next_worker_finishes(
    project: Project, ledger: Reader
) -> None:
    project.hold()
    with project.serve() as serving, project.process("worker", GATEWAY_GRACE="100ms") as worker:
        await serving.ready()
        await serving.post(*stripe_request("evt_1", "slow.event"))
        await until(lambda: _running(ledger))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 0
        assert (await ledger.statuses()).get("pending") == 1
        project.let_go()
        with project.process("worker"):
            await until(lambda: done(ledger, 2))
    assert sorted(await ledger.outcomes()) == ["done", "done", "released"]
    assert await ledger.effects() == 2


STUBBORN = """
import asyncio

from gateway import Context, Event, handler


@handler("*")
async def stubborn(event: Event, ctx: Context) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ctx.log.info("not_me")
"""


async def test_a_handler_that_ignores_everything_does_not_keep_a_worker_from_ending(
    project: Project, ledger: Reader
) -> None:
    project.write("handlers/effects.py", STUBBORN)
    with project.serve() as serving, project.process("worker", GATEWAY_GRACE="100ms") as worker:
        await serving.ready()
        await serving.post(*stripe_request("evt_1"))
        await until(lambda: ledger.value("select 1 from gateway.deliveries where status='running'"))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 0
        assert "tasks_left_behind" in worker.output


async def test_a_stopped_worker_comes_back_from_the_dead_and_applies_nothing_twice(
    project: Project, ledger: Reader
) -> None:
    project.hold()
    with project.serve() as serving, project.process("worker") as zombie:
        await serving.ready()
        await serving.post(*stripe_request("evt_1", "slow.event"))
        await until(lambda: _running(ledger))
        zombie.process.send_signal(signal.SIGSTOP)
        project.let_go()
        with project.process("worker"):
            await until(lambda: done(ledger, 2))
            zombie.process.send_signal(signal.SIGCONT)
            await zombie.says("lease_lost")
    assert await ledger.effects() == 2


LOCKING = """
import asyncio
import pathlib

from gateway import Context, Event, handler


@handler("*", timeout="3s")
async def lock(event: Event, ctx: Context) -> None:
    await ctx.upsert("orders", key={"id": "the same row"}, values={"status": event.id})
    while pathlib.Path("hold").exists():
        await asyncio.sleep(0.02)
"""


async def test_a_stopped_workers_open_transaction_does_not_block_its_successor(
    project: Project, ledger: Reader
) -> None:
    project.write("handlers/effects.py", LOCKING)
    idle = (
        "select 1 from pg_stat_activity where state = 'idle in transaction' "
        "and datname = current_database() and application_name = 'gateway worker handlers'"
    )
    project.hold()
    with project.serve() as serving, project.process("worker") as zombie:
        await serving.ready()
        await serving.post(*stripe_request("evt_1"))
        await until(lambda: ledger.value(idle))
        zombie.process.send_signal(signal.SIGSTOP)
        project.let_go()
        with project.process("worker"):
            await until(lambda: done(ledger, 1))


async def test_the_plain_arq_command_runs_the_worker_too(project: Project, ledger: Reader) -> None:
    command = [sys.executable, "-m", "arq", "gateway.queue.WorkerSettings"]
    with project.serve() as serving, project.started(command) as arq:
        await serving.ready()
        await serving.post(*stripe_request("evt_1"))
        await until(lambda: done(ledger, 1))
        await serving.post(*github_request("guid-1"), path="/webhooks/github")
        await until(lambda: done(ledger, 2))
        arq.process.terminate()
        assert arq.process.wait(PATIENCE_S) == 0
    assert await ledger.effects() == 2


@pytest.fixture(autouse=True)
def migrated(project: Project) -> None:
    result = project.run("migrate")
    assert result.returncode == 0, result.stderr
