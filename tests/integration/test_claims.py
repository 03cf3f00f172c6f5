"""Claims on a real Postgres: once per key, batched, and through trouble."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from gateway.base.errors import StorageUnavailable
from gateway.base.model import RepeatPolicy
from gateway.dev.embedded import Postgres
from gateway.ledger import claims as claims_module
from gateway.ledger.claims import FLUSHERS, Claim, Claimed, Claimer, ClaimVerdict
from tests.support.databases import run_sql
from tests.support.ledger import Reader, claim_all, claiming, make_claim
from tests.support.pgbouncer import needs_own_session
from tests.support.waiting import until


def verdicts(answers: list[Claimed]) -> Counter[str]:
    return Counter(answer.verdict.value for answer in answers)


async def test_a_new_event_is_accepted_with_one_delivery_per_handler(
    database_url: str, ledger: Reader
) -> None:
    [answer] = await claim_all(database_url, [make_claim("evt_1", handlers=["a", "b"])])
    assert answer.verdict is ClaimVerdict.ACCEPTED
    found = await ledger.rows("select id, handler, status from gateway.deliveries order by handler")
    assert [(row["handler"], row["status"]) for row in found] == [
        ("a", "pending"),
        ("b", "pending"),
    ]
    assert sorted(answer.delivery_ids) == sorted(row["id"] for row in found)


async def test_an_event_without_a_handler_is_kept_with_no_delivery(
    database_url: str, ledger: Reader
) -> None:
    [answer] = await claim_all(database_url, [make_claim("evt_1", handlers=[])])
    assert answer == Claimed(verdict=ClaimVerdict.ACCEPTED)
    assert await ledger.value("select count(*) from gateway.processed_events") == 1


async def test_a_hundred_racers_on_one_key_give_one_accepted_and_one_delivery(
    database_url: str, ledger: Reader
) -> None:
    answers = await claim_all(database_url, [make_claim("evt_1") for _ in range(100)])
    assert verdicts(answers) == {"accepted": 1, "duplicate": 99}
    assert await ledger.statuses() == {"pending": 1}


async def test_the_same_id_on_two_routes_is_two_events(database_url: str) -> None:
    answers = await claim_all(
        database_url, [make_claim("evt_1", route="one"), make_claim("evt_1", route="two")]
    )
    assert verdicts(answers) == {"accepted": 2}


async def test_a_duplicate_with_another_body_is_a_conflict(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1", body=b"first")])
    same, other = await claim_all(
        database_url, [make_claim("evt_1", body=b"first"), make_claim("evt_1", body=b"other")]
    )
    assert (same.verdict, same.conflict) == (ClaimVerdict.DUPLICATE, False)
    assert (other.verdict, other.conflict) == (ClaimVerdict.DUPLICATE, True)
    assert await ledger.value("select body from gateway.payloads") == b"first"


async def test_a_conflict_within_one_batch_is_seen(database_url: str) -> None:
    answers = await claim_all(
        database_url, [make_claim("evt_1", body=b"first"), make_claim("evt_1", body=b"other")]
    )
    assert [a.verdict for a in answers] == [ClaimVerdict.ACCEPTED, ClaimVerdict.DUPLICATE]
    assert answers[1].conflict


async def test_many_claims_share_few_commits(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim() for _ in range(500)])
    commits = await ledger.value("select count(distinct xmin::text) from gateway.processed_events")
    assert commits < 50


async def test_accepted_deliveries_are_announced_once(database_url: str) -> None:
    announced: list[int] = []
    async with claiming(database_url, announced) as claimer:
        answers = await asyncio.gather(*(claimer.claim(make_claim("evt_1")) for _ in range(9)))
    [accepted] = [a for a in answers if a.verdict is ClaimVerdict.ACCEPTED]
    assert announced == list(accepted.delivery_ids)


async def test_crossed_batches_of_two_processes_all_end_well_and_never_deadlock(
    database_url: str, ledger: Reader
) -> None:
    ids = [f"evt_{n:03}" for n in range(200)]
    async with claiming(database_url) as one, claiming(database_url) as two:
        for _ in range(5):
            answers = await asyncio.gather(
                *(one.claim(make_claim(i)) for i in ids),
                *(two.claim(make_claim(i)) for i in reversed(ids)),
            )
    assert {a.verdict for a in answers} == {ClaimVerdict.DUPLICATE}
    fresh = [f"new_{n:03}" for n in range(1000)]
    async with claiming(database_url) as one, claiming(database_url) as two:
        await asyncio.gather(
            *(one.claim(make_claim(i)) for i in fresh),
            *(two.claim(make_claim(i)) for i in reversed(fresh)),
        )
    assert (
        await ledger.value(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
        == 0
    )


async def test_a_row_that_postgres_refuses_fails_alone(database_url: str) -> None:
    good, bad = make_claim("evt_good"), make_claim("evt_nul\0")
    async with claiming(database_url) as claimer:
        answers = await asyncio.gather(
            claimer.claim(good),
            claimer.claim(bad),
            claimer.claim(make_claim("evt_2")),
            return_exceptions=True,
        )
    assert isinstance(answers[1], StorageUnavailable)
    assert [a.verdict for a in answers if isinstance(a, Claimed)] == [ClaimVerdict.ACCEPTED] * 2


async def test_a_batch_is_run_again_when_its_connection_is_cut(
    database_url: str, ledger: Reader
) -> None:
    async with claiming(database_url) as claimer:
        await claimer.claim(make_claim())
        for _ in range(5):
            await ledger.run(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'gateway claims' and datname = current_database()"
            )
            answers = await asyncio.gather(*(claimer.claim(make_claim()) for _ in range(20)))
            assert verdicts(list(answers)) == {"accepted": 20}


async def test_a_deadlock_reruns_the_batch(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, failures = claims_module._insert, [asyncpg.DeadlockDetectedError("once")]

    async def deadlocked(*args: object) -> object:
        if failures:
            raise failures.pop()
        return await insert(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(claims_module, "_insert", deadlocked)
    answers = await claim_all(database_url, [make_claim(), make_claim()])
    assert verdicts(answers) == {"accepted": 2}
    assert not failures


async def test_a_claim_nobody_waits_for_any_more_is_withdrawn(
    database_url: str, ledger: Reader
) -> None:
    async with claiming(database_url) as claimer:
        async with _holding_ledger(database_url):
            held = []
            for n in range(FLUSHERS):  # one after the other, so that each has a flusher to itself
                held.append(asyncio.create_task(claimer.claim(make_claim())))
                await until(lambda n=n: ledger.is_blocked(n + 1))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await claimer.claim(make_claim("evt_withdrawn"))
        await asyncio.gather(*held)
        await claimer.claim(make_claim())  # behind whatever the flushers had left to do
    found = await ledger.rows(
        "select 1 from gateway.processed_events where event_id = 'evt_withdrawn'"
    )
    assert found == []


@asynccontextmanager
async def _holding_ledger(url: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("lock table gateway.processed_events in exclusive mode")
        yield
    await connection.close()


async def test_the_same_bytes_under_a_fresh_id_are_refused(
    database_url: str, ledger: Reader
) -> None:
    policy = RepeatPolicy.REFUSE
    first = make_claim("guid-1", body=b"push", repeats=policy)
    again = make_claim("guid-2", body=b"push", repeats=policy)
    await claim_all(database_url, [first])
    [answer] = await claim_all(database_url, [again])
    assert (answer.verdict, answer.first_event_id) == (ClaimVerdict.REPEATED_BODY, "guid-1")
    [redelivered] = await claim_all(database_url, [first])
    assert redelivered.verdict is ClaimVerdict.DUPLICATE
    assert await ledger.statuses() == {"pending": 1}


async def test_the_same_proof_under_a_fresh_id_is_refused_whatever_the_body(
    database_url: str, ledger: Reader
) -> None:
    """Of senders that do not sign their bodies; a changed body under the old id is a conflict."""
    policy = RepeatPolicy.REFUSE
    first = make_claim("evt_1", repeats=policy)._replace(guard=b"g" * 32)
    forged = make_claim("evt_2", repeats=policy)._replace(guard=b"g" * 32)
    await claim_all(database_url, [first])
    [answer] = await claim_all(database_url, [forged])
    assert (answer.verdict, answer.first_event_id) == (ClaimVerdict.REPEATED_BODY, "evt_1")
    changed = make_claim("evt_1", body=b"{}", repeats=policy)._replace(guard=b"g" * 32)
    [answer] = await claim_all(database_url, [changed])
    assert (answer.verdict, answer.conflict) == (ClaimVerdict.DUPLICATE, True)
    [other] = await claim_all(database_url, [forged._replace(guard=b"h" * 32)])
    assert other.verdict is ClaimVerdict.ACCEPTED
    assert await ledger.statuses() == {"pending": 2}


async def test_racing_fresh_ids_for_the_same_bytes_give_one_event(
    database_url: str, ledger: Reader
) -> None:
    claims = [make_claim(f"guid-{n}", body=b"push", repeats=RepeatPolicy.REFUSE) for n in range(50)]
    async with claiming(database_url) as one, claiming(database_url) as two:
        answers = await asyncio.gather(
            *(one.claim(c) for c in claims[::2]), *(two.claim(c) for c in claims[1::2])
        )
    assert verdicts(list(answers)) == {"accepted": 1, "repeated_body": 49}
    assert await ledger.statuses() == {"pending": 1}


async def test_bytes_that_may_repeat_are_accepted_and_flagged(
    database_url: str, ledger: Reader
) -> None:
    claims = [make_claim(f"guid-{n}", body=b"ping", repeats=RepeatPolicy.FLAG) for n in range(4)]
    answers = await claim_all(database_url, claims)
    assert verdicts(answers) == {"accepted": 4}
    flagged = await ledger.rows("select repeat_of from gateway.processed_events order by event_id")
    assert sum(row["repeat_of"] is None for row in flagged) == 1


async def test_todays_rule_for_the_stored_type_decides(database_url: str) -> None:
    """Neither the policy at the first claim, nor the new request's type, which is not signed."""

    def of(event_id: str, type: str, body: bytes, *, then: RepeatPolicy) -> Claim:
        claim = make_claim(event_id, type=type, body=body, repeats=then)
        return claim._replace(refuses=lambda first_type: first_type == "push")

    refuse, flag = RepeatPolicy.REFUSE, RepeatPolicy.FLAG
    await claim_all(database_url, [of("guid-1", "push", b"push", then=flag)])
    [disguised] = await claim_all(database_url, [of("guid-2", "ping", b"push", then=flag)])
    assert (disguised.verdict, disguised.first_event_id) == (ClaimVerdict.REPEATED_BODY, "guid-1")
    await claim_all(database_url, [of("guid-3", "membership", b"joined", then=refuse)])
    [again] = await claim_all(database_url, [of("guid-4", "membership", b"joined", then=refuse)])
    assert (again.verdict, again.first_event_id) == (ClaimVerdict.ACCEPTED, "guid-3")


def identical(*received_at: datetime) -> list[Claim]:
    """Claims of one body of a sender without ids, as they came, each with an id of its own."""
    return [
        make_claim(f"digest.{n}.{at}", body=b"same")._replace(
            received_at=at, window=timedelta(days=2)
        )
        for n, at in enumerate(received_at)
    ]


async def test_of_identical_bodies_one_begins_a_dedup_window(
    database_url: str, ledger: Reader
) -> None:
    """Also if many come at once, to two processes, with an old window to be ended by each."""
    day = timedelta(days=1)
    began = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
    for at in (began, began + 3 * day, began + 6 * day):
        claims = identical(*(at + timedelta(milliseconds=n) for n in range(40)))
        async with claiming(database_url) as one, claiming(database_url) as two:
            answers = await asyncio.gather(
                *(one.claim(c) for c in claims[::2]), *(two.claim(c) for c in claims[1::2])
            )
        assert verdicts(list(answers)) == {"accepted": 1, "duplicate": 39}, at
        [first] = {answer.first_event_id for answer in answers} - {None}
        [late] = await claim_all(database_url, identical(at + 2 * day - timedelta(seconds=1)))
        assert (late.verdict, late.first_event_id) == (ClaimVerdict.DUPLICATE, first)
    assert await ledger.value("select count(*) from gateway.processed_events") == 3
    assert await ledger.value("select count(guard) from gateway.processed_events") == 1


async def test_a_body_whose_event_was_pruned_is_a_duplicate_of_the_one_after_it(
    database_url: str, ledger: Reader
) -> None:
    began = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
    for days in (0, 2):
        [answer] = await claim_all(database_url, identical(began + timedelta(days=days)))
        assert answer.verdict is ClaimVerdict.ACCEPTED
    await ledger.run("delete from gateway.deliveries where event_id like '%2026-11-01%'")
    await ledger.run("delete from gateway.processed_events where received_at = $1", began)
    [answer] = await claim_all(database_url, identical(began + timedelta(days=3)))
    assert answer.verdict is ClaimVerdict.DUPLICATE


async def test_a_conflicting_duplicate_does_not_burn_the_bytes_it_brought(
    database_url: str,
) -> None:
    """Otherwise a captured body, sent early under an old id, would suppress the honest event."""
    policy = RepeatPolicy.REFUSE
    await claim_all(database_url, [make_claim("guid-1", body=b"one", repeats=policy)])
    [conflict] = await claim_all(database_url, [make_claim("guid-1", body=b"two", repeats=policy)])
    assert conflict.conflict
    [honest] = await claim_all(database_url, [make_claim("guid-2", body=b"two", repeats=policy)])
    assert honest.verdict is ClaimVerdict.ACCEPTED


@needs_own_session
async def test_a_database_that_was_read_only_for_a_while_is_written_again(
    database_url: str, ledger: Reader
) -> None:
    """As after a failover to which the client has not followed yet: what waits is claimed when
    there is a primary. Sessions that were opened meanwhile stay read-only: they are not kept."""
    cut = (
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = 'gateway claims' and datname = current_database()"
    )
    name = await ledger.value("select current_database()")
    async with claiming(database_url) as claimer:
        await claimer.claim(make_claim())
        await ledger.run(f'alter database "{name}" set default_transaction_read_only = on')
        await ledger.run(cut)
        waiting = [asyncio.create_task(claimer.claim(make_claim())) for _ in range(9)]
        await until(lambda: claimer.is_away)
        assert not any(task.done() for task in waiting)
        await ledger.run(f'alter database "{name}" reset default_transaction_read_only')
        answers = await asyncio.gather(*waiting)
    assert verdicts(answers) == {"accepted": 9}
    assert not claimer.is_away


async def test_a_stopped_claimer_refuses_instead_of_hanging(database_url: str) -> None:
    async with claiming(database_url) as claimer:
        pass
    with pytest.raises(StorageUnavailable):
        await claimer.claim(make_claim())


async def test_a_duplicate_is_answered_when_a_standby_has_what_it_repeats(
    database_url: str, postgres: Postgres, ledger: Reader
) -> None:
    """A commit that waits for its standby is given up, and stands on this side all the same. Who
    then only finds it there has nothing to commit, and must wait as well."""
    claimer = Claimer(database_url, on_accepted=lambda _: None, patience_s=0.3)
    await claimer.start()
    try:
        async with lonely(postgres.url):
            await _is_not_answered(claimer)
            await until(lambda: ledger.value("select count(*) from gateway.processed_events"))
            await _is_not_answered(claimer)
        assert (await claimer.claim(make_claim("evt_1"))).verdict is ClaimVerdict.DUPLICATE
    finally:
        await claimer.stop()


async def _is_not_answered(claimer: Claimer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await claimer.claim(make_claim("evt_1"))


@asynccontextmanager
async def lonely(url: str) -> AsyncIterator[None]:
    """Commits wait for a standby that is not there."""
    await _set_standby(url, "nobody")
    try:
        yield
    finally:
        await _set_standby(url, "")


async def _set_standby(url: str, name: str) -> None:
    await run_sql(
        url,
        f"alter system set synchronous_standby_names = '{name}'",
        "select pg_reload_conf()",
    )

    async def is_known() -> bool:
        connection = await asyncpg.connect(url)
        try:
            return bool(await connection.fetchval("show synchronous_standby_names") == name)
        finally:
            await connection.close()

    await until(is_known)
