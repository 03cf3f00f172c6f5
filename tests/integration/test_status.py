"""`gateway status`: what needs attention is said first, and figures are those of what happened."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rich.console import Console

from gateway.cli.status import draw, draw_to_fit
from gateway.config.settings import Settings
from gateway.ledger import health as counting
from gateway.ledger.connection import Pool, open_pool
from gateway.ledger.statistics import ACKNOWLEDGED, REQUESTS, MinuteStats
from gateway.operations.health.reading import read_snapshot_alone
from gateway.operations.health.snapshot import HandlerState, HealthSnapshot, RequestCounts
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.support.workers import count, make_settings, subscribe, working

HANDLER = "handlers.count"


@pytest.fixture
def settings(database_url: str, redis_url: str, tmp_path: Path) -> Settings:
    return make_settings(
        database_url,
        redis_url=SecretStr(redis_url),
        data_dir=tmp_path,
        config=tmp_path / "none.yaml",
    )


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    yield pool
    await pool.close()


async def add_worker(ledger: Reader, *handlers: str) -> None:
    await ledger.run(
        "insert into gateway.workers (id, host, pid, handlers)"
        " values (gen_random_uuid(), 'one', 1, $1)",
        list(handlers),
    )


def told(status: HealthSnapshot) -> str:
    return "\n".join(f"{a.level}: {a.text} / {a.advice}" for a in status.attention)


def shown(status: HealthSnapshot, width: int = 100) -> str:
    console = Console(width=width, height=40, highlight=False, force_terminal=False, record=True)
    with console.capture() as captured:
        console.print(draw(status, width))
    return captured.get()


def only(status: HealthSnapshot) -> HandlerState:
    [handler] = status.handlers
    return handler


async def add_refused(ledger: Reader, cause: str, n: int) -> None:
    await ledger.run(
        "insert into gateway.rejected"
        " (route, at, code, cause, detail, method, path, sender, digest, size)"
        " select 'stripe', now(), 'BAD_SIGNATURE', $1, 'it is ' || $1, 'POST', '', 'c', 'd', 0"
        " from generate_series(1, $2)",
        cause,
        n,
    )


async def test_where_nothing_is_wrong_it_says_so(settings: Settings, ledger: Reader) -> None:
    await add_worker(ledger, f"stripe {HANDLER}")
    status = await read_snapshot_alone(settings)
    assert told(status) == ""
    assert "All is well." in shown(status)


async def test_it_says_how_far_counts_lag(settings: Settings, ledger: Reader) -> None:
    every = settings.model_copy(update={"sweep": timedelta(seconds=2)})
    status = await read_snapshot_alone(every)
    assert status.counts_lag_s == 2.0
    line = next(row for row in shown(status).splitlines() if row.startswith("Counts"))
    told = "requests and runs lag by up to 2s; waiting, running and dead do not"
    assert line.split(maxsplit=1)[1].strip() == told
    slow = settings.model_copy(update={"sweep": timedelta(hours=1)})
    assert (await read_snapshot_alone(slow)).counts_lag_s == 5.0


async def test_no_worker_is_a_problem(settings: Settings, database_url: str) -> None:
    await claim_all(database_url, [make_claim(), make_claim()])
    status = await read_snapshot_alone(settings)
    assert "problem: no worker is alive, and 2 deliveries wait" in told(status)
    assert only(status).pending == 2


async def test_dead_letters_come_first_with_what_to_do(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    await add_worker(ledger, f"stripe {HANDLER}")
    await claim_all(database_url, [make_claim() for _ in range(3)])
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now() - id * interval '40 m'"
    )
    status = await read_snapshot_alone(settings)
    [first, *_] = status.attention
    assert first.level == "problem"
    assert "3 dead letters, 1 of them in the last hour" in first.text
    assert HANDLER in first.text
    assert "`gateway dead --group`" in first.advice
    assert (only(status).dead, only(status).dead_lately) == (3, 1)
    await ledger.run("update gateway.deliveries set status = 'discarded' where id > 1")
    assert "1 dead letter, in the last hour (handlers.count (stripe))" in told(
        await read_snapshot_alone(settings)
    )


@pytest.mark.parametrize(("minutes", "said"), [(4, False), (6, True)])
async def test_a_backlog_is_a_problem_once_it_is_old(
    settings: Settings, ledger: Reader, database_url: str, minutes: int, said: bool
) -> None:
    await add_worker(ledger, f"stripe {HANDLER}")
    await claim_all(database_url, [make_claim()])
    await ledger.run(
        "update gateway.deliveries set due_at = now() - $1::interval", timedelta(minutes=minutes)
    )
    assert (
        f"{HANDLER} (stripe) is behind: 1 waiting" in told(await read_snapshot_alone(settings))
    ) is said


async def test_an_orphan_is_told_and_not_told_again_as_a_backlog(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    await add_worker(ledger, "stripe handlers.other")
    await claim_all(database_url, [make_claim()])
    await ledger.run("update gateway.deliveries set due_at = now() - interval '1 h'")
    status = await read_snapshot_alone(settings)
    assert f"{HANDLER} (stripe) is in no worker: 1 waiting" in told(status)
    assert f'if it was renamed, write formerly=["{HANDLER}"]' in told(status)
    assert "is behind" not in told(status)
    assert only(status).orphaned
    assert "orphaned: no worker has this handler" in shown(status)


async def test_deliveries_that_run_alone_are_named(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    await add_worker(ledger, f"stripe {HANDLER}")
    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    await ledger.run("update gateway.deliveries set workers_lost = 2 where event_id = 'evt_1'")
    await ledger.run("update gateway.deliveries set workers_lost = 1 where event_id = 'evt_2'")
    status = await read_snapshot_alone(settings)
    assert "a worker was lost twice while 1 delivery ran; each runs alone" in told(status)
    assert only(status).suspects == 1
    assert "1 run alone" in shown(status)


async def test_rates_success_and_times_are_those_of_the_tallies(
    settings: Settings, ledger: Reader, pool: Pool
) -> None:
    await add_worker(ledger)
    stats = MinuteStats()
    for outcome, n in (("accepted", 90), ("duplicate", 5), ("greeted", 3), ("BAD_SIGNATURE", 40)):
        for _ in range(n):
            stats.add("stripe", REQUESTS, outcome)
    for n in range(100):
        stats.add("stripe", REQUESTS, ACKNOWLEDGED, seconds=0.010 if n < 98 else 1.0)
        outcome = "retry" if n < 60 else "dead" if n < 70 else "done"
        stats.add("stripe", HANDLER, outcome, seconds=0.2)
    stats.add("stripe", HANDLER, "released", seconds=100)
    await stats.flush(pool)
    status = await read_snapshot_alone(settings)
    [route] = status.routes
    assert route.minutes == route.hour
    assert route.hour == RequestCounts(accepted=90, duplicate=5, ignored=0, refused=40)
    assert route.p50_ms == pytest.approx(10, rel=0.1)
    assert route.p99_ms == pytest.approx(1000, rel=0.1)
    assert route.last_event_at is not None
    handler = only(status)
    assert (handler.runs, handler.failed, handler.success) == (100, 70, 0.3)
    assert handler.retried == 60
    assert handler.p99_ms == pytest.approx(200, rel=0.1)
    assert "40 of 135 requests refused as BAD_SIGNATURE" in told(status)
    assert f"{HANDLER} (stripe) failed 70 of 100 runs in the last hour" in told(status)


async def test_what_was_an_hour_ago_is_not_shown_as_lately(
    settings: Settings, ledger: Reader, pool: Pool
) -> None:
    stats = MinuteStats()
    stats.add("stripe", REQUESTS, "accepted")
    await stats.flush(pool)
    for minutes, expected in ((10, (0, 1)), (70, (0, 0))):
        await ledger.run(
            "update gateway.tallies set minute = date_trunc('minute', now()) - $1::interval",
            timedelta(minutes=minutes),
        )
        [route] = (await read_snapshot_alone(settings)).routes
        assert (route.minutes.accepted, route.hour.accepted) == expected


async def test_requests_that_were_not_taken_are_a_problem(
    settings: Settings, ledger: Reader, pool: Pool
) -> None:
    stats = MinuteStats()
    stats.add("stripe", REQUESTS, "UNAVAILABLE")
    await stats.flush(pool)
    assert "problem: stripe: 1 request not taken (503)" in told(await read_snapshot_alone(settings))


async def test_a_backlog_of_very_many_is_not_counted_to_its_end(
    settings: Settings, ledger: Reader, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST_COUNTED", 3)
    await claim_all(database_url, [make_claim() for _ in range(7)])
    await claim_all(database_url, [make_claim(route="b", handlers=("x", "y")) for _ in range(2)])
    status = await read_snapshot_alone(settings)
    assert [(h.handler, h.pending, h.capped) for h in status.handlers] == [
        ("x", 2, []),
        ("y", 2, []),
        (HANDLER, 3, ["pending"]),
    ]
    assert "3+" in shown(status)
    await ledger.run("update gateway.deliveries set status = 'dead', finished_at = now()")
    status = await read_snapshot_alone(settings)
    assert [a.text[:15] for a in status.attention if "dead" in a.text] == ["7+ dead letters"]
    assert {h.handler: h.capped for h in status.handlers} == {
        "x": [],
        "y": [],
        HANDLER: ["dead"],
    }


async def test_dead_letters_of_the_last_hour_are_told_from_older_ones(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    await claim_all(database_url, [make_claim() for _ in range(3)])
    await ledger.run(
        "update gateway.deliveries d"
        " set status = 'dead', finished_at = now() - n * interval '25 min'"
        " from (select id, row_number() over (order by id) as n from gateway.deliveries) few"
        " where few.id = d.id"
    )
    status = await read_snapshot_alone(settings)
    assert (only(status).dead, only(status).dead_lately) == (3, 2)
    assert "3 dead letters, 2 of them in the last hour" in told(status)


async def test_a_pause_is_told_with_who_and_why_and_not_as_a_backlog(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    await add_worker(ledger, f"stripe {HANDLER}")
    await claim_all(database_url, [make_claim()])
    await ledger.run("update gateway.deliveries set due_at = now() - interval '1 h'")
    await ledger.run(
        "insert into gateway.pauses (route, handler, actor, reason, since)"
        " values ('stripe', $1, 'ann', 'the bank is away', now() - interval '3 h')",
        HANDLER,
    )
    status = await read_snapshot_alone(settings)
    assert f"{HANDLER} is paused, for 3h now, by ann: the bank is away" in told(status)
    assert f"`gateway resume stripe {HANDLER}`" in told(status)
    assert "is behind" not in told(status)
    assert only(status).paused


async def test_a_failed_reconcile_is_told(settings: Settings, ledger: Reader) -> None:
    await ledger.run(
        "insert into gateway.reconciliations (route, actor, since, until, dry_run, status, error,"
        " finished_at) values ('github', 'schedule', now(), now(), false, 'failed', 'status 401',"
        " now())"
    )
    status = await read_snapshot_alone(settings)
    assert "the last reconcile of github failed" in told(status)
    assert "status 401" in told(status)
    assert "github failed" in shown(status)


async def test_an_idle_bulk_operation_is_reported(settings: Settings, ledger: Reader) -> None:
    await ledger.run(
        "insert into gateway.bulk_orders"
        " (action, filter, actor, began_at, mark_at, total, moved, stepped_at)"
        " values ('replay', '{}', 'ann', now(), now(), 5000, 1200, now() - interval '1 h')"
    )
    status = await read_snapshot_alone(settings)
    assert "(replay, by ann) has no running process: it stopped at 1,200 of 5,000, 1h ago" in told(
        status
    )
    assert f"`gateway bulk resume {status.bulk[0]['bulk_id']}`" in told(status)
    assert "1,200 of 5,000" in shown(status)


async def test_without_redis_it_is_a_warning(settings: Settings, ledger: Reader) -> None:
    await add_worker(ledger)
    away = SecretStr(f"redis://:hush@127.0.0.1:{free_port()}/0")
    status = await read_snapshot_alone(settings.model_copy(update={"redis_url": away}))
    assert [a.level for a in status.attention] == ["warning"]
    assert "Redis is away" in told(status)
    assert "hush" not in str(status)


async def test_without_postgres_redis_and_the_spool_are_still_shown(settings: Settings) -> None:
    url = SecretStr(f"postgresql://ann:hush@127.0.0.1:{free_port()}/none")
    status = await read_snapshot_alone(settings.model_copy(update={"database_url": url}))
    assert status.postgres.reachable is False
    assert status.redis.reachable is True
    assert "Postgres cannot be reached" in told(status)
    assert "hush" not in str(status)
    text = shown(status)
    assert "Spool" in text
    assert "away" in text


async def test_what_strangers_wrote_cannot_steer_the_terminal(
    settings: Settings, database_url: str
) -> None:
    await claim_all(database_url, [make_claim(handlers=("\x1b[31mred[bold]",))])
    text = shown(await read_snapshot_alone(settings))
    assert "\x1b" not in text
    assert "red[bold]" in text


@pytest.mark.parametrize("width", [80, 100, 240])
async def test_a_handful_of_handlers_fits_the_screen(
    settings: Settings, ledger: Reader, pool: Pool, width: int
) -> None:
    stats = MinuteStats()
    for route in ("stripe", "github", "tasks"):
        for n in range(4):
            stats.add(route, REQUESTS, "accepted", seconds=n)
            stats.add(route, f"handlers.module_{n}.function_{n}", "done", seconds=n)
    await stats.flush(pool)
    lines = shown(await read_snapshot_alone(settings), width).splitlines()
    assert len(lines) <= 38
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 100])
async def test_many_handlers_leave_room_for_the_rest_of_the_screen(
    width: int, settings: Settings, ledger: Reader, database_url: str
) -> None:
    """It is redrawn, and cannot be scrolled: those in trouble stay, and so do the engines."""
    names = [f"handlers.many.h_{n:03}" for n in range(100)]
    await add_worker(ledger, *(f"stripe {name}" for name in names))
    await claim_all(database_url, [make_claim(handlers=names)])
    await ledger.run("update gateway.deliveries set due_at = now()")
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now() where handler = $1",
        names[70],
    )
    status = await read_snapshot_alone(settings)
    assert len(status.handlers) == 100
    out = Console(width=width, height=30, highlight=False)
    lines = out.render_lines(draw_to_fit(status, out, 28), pad=False)
    text = "\n".join("".join(piece.text for piece in line) for line in lines)
    assert len(lines) == 28
    assert [name for name in names if f"\n{name} " in text][-1] == names[70]
    for said in ("more handlers", "Postgres", "Workers", "Time"):
        assert said in text


async def test_the_same_trouble_of_many_handlers_is_told_of_a_few(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    names = [f"handlers.gone_{n:02}" for n in range(12)]
    await add_worker(ledger, f"stripe {HANDLER}")
    await claim_all(database_url, [make_claim("evt_1", handlers=names)])
    status = await read_snapshot_alone(settings)
    assert len(status.attention) == 6
    assert "the same is true of 7 more handlers" in told(status)
    await ledger.run("update gateway.deliveries set status = 'dead', finished_at = now()")
    assert "of 12 handlers, such as handlers.gone_00" in told(await read_snapshot_alone(settings))


async def test_a_worker_tells_its_version(database_url: str, settings: Settings) -> None:
    async with working(database_url, subscribe(count)):

        async def alive() -> list[Any]:
            return [w.version for w in (await read_snapshot_alone(settings)).workers]

        assert len((await until(alive))[0].split(".")) == 3


async def test_times_are_those_of_the_database(settings: Settings) -> None:
    status = await read_snapshot_alone(settings)
    assert abs(status.at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_each_cause_of_refusals_is_told_with_what_is_known_of_it_alone(
    settings: Settings, ledger: Reader, pool: Pool
) -> None:
    await add_worker(ledger)
    stats = MinuteStats()
    for _ in range(40):
        stats.add("stripe", REQUESTS, "BAD_SIGNATURE")
    await stats.flush(pool)
    await add_refused(ledger, "reserialised", 1)
    await add_refused(ledger, "unknown_secret", 30)
    said = told(await read_snapshot_alone(settings))
    assert "as BAD_SIGNATURE in the last hour, 1 looked into: it is reserialised" in said
    assert "refused as BAD_SIGNATURE in the last 5 minutes / it is unknown_secret" in said


async def test_what_was_released_needs_no_attention_any_more(
    settings: Settings, ledger: Reader
) -> None:
    await add_worker(ledger)
    await add_refused(ledger, "clock", 2)
    assert "2 requests refused on stripe as BAD_SIGNATURE in the last hour: it is clock" in told(
        await read_snapshot_alone(settings)
    )
    await ledger.run("update gateway.rejected set released_at = now()")
    assert "clock" not in told(await read_snapshot_alone(settings))
