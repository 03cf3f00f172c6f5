"""Suspects, deliveries whose worker was lost twice: which worker leases them, and how many."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Context, Event
from gateway.processes.work import Worker
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, looked_again, subscribe, working

FLOWS = pytest.mark.parametrize(
    "flow", [{}, {"concurrency": 5}], ids=["unlimited", "with a concurrency"]
)


async def suspect(ledger: Reader, *event_ids: str) -> None:
    await ledger.run(
        "update gateway.deliveries set workers_lost = 2 where event_id = any ($1)", event_ids
    )


async def done(ledger: Reader) -> list[str]:
    rows = await ledger.rows(
        "select event_id from gateway.deliveries where status = 'done' order by event_id"
    )
    return [row["event_id"] for row in rows]


async def are_done(ledger: Reader, *event_ids: str) -> bool:
    return await done(ledger) == [*event_ids]


@FLOWS
async def test_an_isolated_worker_runs_suspects_only_and_one_at_a_time(
    database_url: str, ledger: Reader, flow: dict[str, Any]
) -> None:
    running, most = 0, 0

    async def handler(event: Event, ctx: Context) -> None:
        nonlocal running, most
        running += 1
        leased = await ledger.value(
            "select count(*) from gateway.deliveries where status = 'running'"
        )
        most = max(most, running, leased)
        await asyncio.sleep(0)
        running -= 1

    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(8)])
    await suspect(ledger, *(f"evt_{n}" for n in range(6)))
    async with working(database_url, subscribe(handler, **flow), isolated=True) as worker:
        await until(lambda: are_done(ledger, *(f"evt_{n}" for n in range(6))))
        worker.hint([7, 8])
        await looked_again(worker)
        await asyncio.wait_for(worker.wait_idle(), 20)
    assert most == 1
    assert await ledger.statuses() == {"done": 6, "pending": 2}


@FLOWS
async def test_other_workers_leave_suspects_alone(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch, flow: dict[str, Any]
) -> None:
    monkeypatch.setattr("gateway.worker.isolated.COMMAND", ("true",))
    answers = await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    await suspect(ledger, "evt_1")
    async with working(database_url, subscribe(count, **flow)) as worker:
        worker.hint([id for answer in answers for id in answer.delivery_ids])
        await until(lambda: are_done(ledger, "evt_2"))
        await looked_again(worker)
    assert await done(ledger) == ["evt_2"]


async def test_a_process_that_cannot_be_started_does_not_end_the_worker(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file, no memory or no more processes: the suspect waits, and the others go on."""
    program, started = tmp_path / "gateway", tmp_path / "started"
    monkeypatch.setattr("gateway.worker.isolated.COMMAND", (str(program), str(started)))
    await claim_all(database_url, [make_claim("evt_1")])
    await suspect(ledger, "evt_1")
    with capture_logs() as logs:
        async with working(database_url, subscribe(count)) as worker:
            await until(lambda: ended(worker) or "isolated_worker_not_started" in events(logs))
            program.write_text('#!/bin/sh\ntouch "$1"\n')
            program.chmod(0o700)
            await claim_all(database_url, [make_claim("evt_2")])
            await until(lambda: are_done(ledger, "evt_2"))
            assert ended(worker) == []
            await until(started.exists)
    assert "isolated_worker_not_started" in events(logs)


def events(logs: Sequence[Mapping[str, Any]]) -> set[str]:
    return {line["event"] for line in logs}


def ended(worker: Worker) -> list[str]:
    """Return the parts of a worker that have ended. Its process ends with any of them."""
    return [task.get_name() for task in worker.tasks if task.done()]


async def test_a_suspect_counts_in_the_concurrency_of_its_handler(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.worker.isolated.COMMAND", ("true",))
    may_end = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        await may_end.wait()

    one = subscribe(handler, concurrency=1)
    await claim_all(database_url, [make_claim("evt_1")])
    async with (
        working(database_url, one) as worker,
        working(database_url, one, isolated=True) as isolated,
    ):
        await until(lambda: worker.runner.busy)
        await claim_all(database_url, [make_claim("evt_2")])
        await suspect(ledger, "evt_2")
        await looked_again(isolated)
        assert await ledger.statuses() == {"running": 1, "pending": 1}
        may_end.set()
        await until(lambda: are_done(ledger, "evt_1", "evt_2"))


async def test_a_suspect_holds_its_ordering_key(database_url: str, ledger: Reader) -> None:
    order: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        order.append(event.id)

    keys = {"handlers.count": "a"}
    claims = [make_claim(f"evt_{n}", order_keys=keys) for n in (1, 2)]
    for claim in claims:
        await claim_all(database_url, [claim])
    await suspect(ledger, "evt_1")
    async with working(database_url, subscribe(handler), isolated=True) as isolated:
        await until(lambda: are_done(ledger, "evt_1"))
        await looked_again(isolated)
    async with working(database_url, subscribe(handler)):
        await until(lambda: are_done(ledger, "evt_1", "evt_2"))
    assert order == ["evt_1", "evt_2"]


async def test_a_replayed_delivery_that_killed_its_workers_runs_alone(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    await ledger.run(
        "update gateway.deliveries set status = 'dead', losses = 10, workers_lost = 12,"
        " finished_at = now()"
    )
    await ledger.replay((await ledger.delivery())["id"])
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["losses"], delivery["workers_lost"]) == ("pending", 0, 12)
    async with working(database_url, subscribe(count), isolated=True):
        await until(lambda: are_done(ledger, "evt_1"))
    assert (await ledger.delivery())["workers_lost"] == 0
