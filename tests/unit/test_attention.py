"""What needs attention in a health snapshot: pure rules, of which the time is an argument."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.ledger.bulk import Action, BulkOperation, BulkStatus, EffectPolicy
from gateway.ledger.health import WorkerState
from gateway.ledger.pauses import Pause
from gateway.operations.health.attention import FEW_HANDLERS, OLD, SOON, find_attention
from gateway.operations.health.snapshot import (
    HandlerState,
    HealthSnapshot,
    PostgresState,
    ReconcileState,
    RedisState,
    ReloadState,
    RequestCounts,
    RouteState,
    SecretState,
    SpoolState,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=2)

WORKER = WorkerState(
    id="w", host="one", pid=1, version="1", handlers=["stripe h"], started_at=NOW, seen_at=NOW
)
HANDLER = HandlerState(
    route="stripe",
    handler="h",
    pending=0,
    oldest_due_at=None,
    waiting_turn=0,
    suspects=0,
    running=0,
    dead=0,
    dead_lately=0,
    unknown_effects=0,
    capped=[],
    blocked_keys=0,
    orphaned=False,
    paused=False,
    runs=0,
    failed=0,
    retried=0,
    success=None,
    p50_ms=None,
    p99_ms=None,
    note=None,
)
NONE = RequestCounts(accepted=0, duplicate=0, ignored=0, refused=0)
ROUTE = RouteState(
    route="stripe",
    last_hour=0,
    last_event_at=None,
    last_refused_at=None,
    last_refused_as=None,
    minutes=NONE,
    hour=NONE,
    refused_as={},
    shed=0,
    rejected_items=0,
    retries=True,
    p50_ms=None,
    p99_ms=None,
    secrets=[],
)
SPOOL = SpoolState(host="one", events=0, bytes=0, oldest_at=None, unreadable=[], keys={})
WELL = HealthSnapshot(
    at=NOW,
    counts_lag_s=1.0,
    postgres=PostgresState(reachable=True, connections=5, max_connections=100),
    redis=RedisState(reachable=True),
    spool=SPOOL,
    routes=[ROUTE],
    handlers=[HANDLER],
    workers=[WORKER],
)
BEHIND = replace(HANDLER, pending=3, oldest_due_at=NOW - OLD)
RUN = ReconcileState(
    route="stripe",
    status="failed",
    started_at=LONG_AGO,
    finished_at=None,
    missing=0,
    recovered=0,
    unrecoverable=0,
    error="boom",
)
BULK = BulkOperation(
    bulk_id=7,
    action=Action.REPLAY,
    filter={},
    status=BulkStatus.RUNNING,
    is_idle=True,
    total=9,
    moved=4,
    skipped=0,
    rate=None,
    effects=EffectPolicy.KEEP,
    effects_kept=0,
    effects_unknown=0,
    actor="ann",
    reason=None,
    began_at=LONG_AGO,
    stepped_at=LONG_AGO,
    finished_at=None,
    resumed=0,
)
REFUSED = replace(NONE, accepted=4, refused=6)
RELOAD = ReloadState(host="one", pid=2, at=LONG_AGO, outcome="refused", error="no secret")


def secret(expires_at: datetime | None, last_used_at: datetime | None = None) -> SecretState:
    return SecretState(
        secret="env:A",
        expires_at=expires_at,
        expired=expires_at is not None and expires_at <= NOW,
        last_used_at=last_used_at,
    )


def expiring(*secrets: SecretState) -> HealthSnapshot:
    return replace(WELL, routes=[replace(ROUTE, secrets=list(secrets))])


@pytest.mark.parametrize(
    ("health", "line"),
    [
        (replace(WELL, postgres=PostgresState(reachable=False, error="away")), "problem: away"),
        (replace(WELL, workers=[]), "problem: no worker is alive"),
        (
            replace(WELL, handlers=[replace(HANDLER, dead=1, dead_lately=1)]),
            "problem: 1 dead letter, in the last hour (h (stripe))",
        ),
        (
            replace(WELL, handlers=[replace(HANDLER, unknown_effects=2)]),
            "problem: h (stripe) does not know the outcome of 2 effects",
        ),
        (
            replace(WELL, handlers=[BEHIND]),
            "problem: h (stripe) is behind: 3 waiting, the oldest due for 5m",
        ),
        (
            replace(WELL, handlers=[replace(BEHIND, orphaned=True)]),
            "problem: h (stripe) is in no worker: 3 waiting",
        ),
        (
            replace(WELL, handlers=[replace(HANDLER, suspects=1)]),
            "warning: h (stripe): a worker was lost twice while 1 delivery ran; each runs alone",
        ),
        (
            replace(WELL, handlers=[replace(HANDLER, runs=10, failed=6, success=0.4)]),
            "warning: h (stripe) failed 6 of 10 runs in the last hour",
        ),
        (
            replace(
                WELL,
                pauses=[
                    Pause(route="stripe", handler=None, actor="ann", reason=None, since=LONG_AGO)
                ],
            ),
            "warning: all of stripe is paused, for 2d now, by ann",
        ),
        (
            replace(WELL, reconciles=[RUN]),
            "problem: the last reconcile of stripe failed 2d ago: boom",
        ),
        (
            replace(WELL, reconciles=[replace(RUN, status="done", unrecoverable=1)]),
            "warning: 1 event of stripe never came and cannot be had any more",
        ),
        (
            replace(WELL, bulk=[BULK]),
            "warning: bulk operation 7 (replay, by ann) has no running process: it stopped at 4"
            " of 9, 2d ago",
        ),
        (
            replace(WELL, routes=[replace(ROUTE, shed=2, retries=False)]),
            "problem: stripe: 2 requests were shed (503) in the last hour: too many in flight;"
            " the sender does not retry: 2 events may be lost",
        ),
        (
            replace(
                WELL, routes=[replace(ROUTE, minutes=REFUSED, refused_as={"BAD_SIGNATURE": 6})]
            ),
            "warning: stripe: 6 of 10 requests refused as BAD_SIGNATURE in the last 5 minutes",
        ),
        (
            expiring(secret(LONG_AGO)),
            "problem: every secret of stripe has expired: all its requests are refused",
        ),
        (
            expiring(secret(NOW + SOON)),
            "problem: env:A of stripe expires in 7d, and there is no other one then",
        ),
        (
            expiring(secret(NOW + SOON, last_used_at=NOW - timedelta(hours=1)), secret(None)),
            "warning: env:A of stripe expires in 7d, and was used 1h ago",
        ),
        (
            replace(WELL, reloads=[RELOAD]),
            "problem: serve on one, pid 2, refused a reload 2d ago, and goes on with the secrets"
            " that it had: no secret",
        ),
        (
            replace(WELL, spool=replace(SPOOL, events=1, oldest_at=LONG_AGO)),
            "warning: 1 event waits in the spool on one, the oldest for 2d",
        ),
        (
            replace(WELL, redis=RedisState(reachable=False, error="refused")),
            "warning: Redis is away: refused",
        ),
        (
            replace(
                WELL, postgres=PostgresState(reachable=True, connections=90, max_connections=100)
            ),
            "warning: Postgres has 90 of 100 connections in use",
        ),
    ],
)
def test_each_condition_is_one_line(health: HealthSnapshot, line: str) -> None:
    assert [f"{found.level}: {found.text}" for found in find_attention(health, NOW)] == [line]


@pytest.mark.parametrize(
    "health",
    [
        WELL,
        replace(WELL, handlers=[replace(BEHIND, oldest_due_at=NOW - OLD + timedelta(seconds=1))]),
        replace(WELL, handlers=[replace(BEHIND, paused=True)]),
        replace(WELL, handlers=[replace(HANDLER, runs=9, failed=9, success=0.0)]),
        replace(WELL, bulk=[{**BULK, "is_idle": False}]),
        expiring(secret(NOW + SOON + timedelta(seconds=1))),
    ],
)
def test_nothing_to_report(health: HealthSnapshot) -> None:
    assert find_attention(health, NOW) == []


def test_the_time_decides() -> None:
    health = replace(WELL, handlers=[replace(BEHIND, oldest_due_at=NOW)])
    assert find_attention(health, NOW) == []
    assert len(find_attention(health, NOW + OLD)) == 1


def test_problems_come_first_and_of_many_handlers_the_rest_is_counted() -> None:
    many = [replace(BEHIND, handler=f"h{n}", suspects=1) for n in range(FEW_HANDLERS + 2)]
    found = find_attention(replace(WELL, handlers=many), NOW)
    assert [line.level for line in found] == ["problem"] * 6 + ["warning"] * 6
    assert found[FEW_HANDLERS].text == "the same is true of 2 more handlers"
    assert {line.see for line in found} == {"handlers"}
