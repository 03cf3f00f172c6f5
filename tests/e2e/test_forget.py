"""`pause`, `prune` and `erase` as commands: what they say, from afar, and killed in the middle."""

import json
import signal
from typing import Final

import pytest

from tests.support.forked import Death
from tests.support.ledger import Reader
from tests.support.processes import Project, stripe_request
from tests.support.waiting import until

TOKEN: Final = "admin-token-of-the-suite"
COUNT: Final = ("stripe", "handlers.effects.count")
ACCOUNT: Final = "acct_grace"
WHY: Final = ("--reason", "request 7", "--yes")
EVENTS: Final = 450
"""More than two steps of an erasure."""

FILL: Final = """
insert into gateway.processed_events (route, event_id, provider, type, account, received_at, digest, payload_id, payload_until)
select 'stripe', 'evt_' || n, 'stripe', 'invoice.paid', 'acct_grace', now(), sha256(n::text::bytea), n, current_date + 20
from generate_series(1, 450) n;
insert into gateway.payloads (id, until, route, event_id, headers, body)
select payload_id, payload_until, route, event_id, '{}', 'Grace' from gateway.processed_events;
insert into gateway.deliveries (route, event_id, handler, status, error, finished_at)
select 'stripe', 'evt_' || n, 'handlers.effects.count', (array['pending', 'dead', 'done'])[1 + n % 3], 'Grace',
       case when n % 3 > 0 then now() end
from generate_series(1, 450) n;
insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
select id, 1, now(), now(), 'retry', 'Grace' from gateway.deliveries;
"""  # noqa: E501 (rows)

HALF: Final = """
select e.event_id
from gateway.events e
join gateway.deliveries d using (route, event_id)
join gateway.attempts a on a.delivery_id = d.id
cross join lateral (
    select count(*) as n from gateway.audit o where o.action = 'erase' and o.event_id = e.event_id
) o
where num_nulls(e.body, e.headers, e.account, d.error, a.error) not in (0, 5)
   or o.n <> case when e.body is null then 1 else 0 end
   or (e.body is null) <> (d.status = 'discarded' or d.status = 'done' and d.error is null)
"""


@pytest.mark.parametrize(
    ("step", "nth", "erased"),
    [
        ("erase.held", 1, 0),
        ("erase.taken", 1, 0),
        ("erase.committed", 1, 200),
        ("erase.held", 2, 200),
        ("erase.taken", 3, 400),
    ],
)
async def test_an_erasure_that_dies_leaves_every_event_whole_or_erased(
    step: str, nth: int, erased: int, project: Project, ledger: Reader
) -> None:
    await ledger.run(FILL)
    with project.doomed(Death(step, nth), "erase", "--account", ACCOUNT, *WHY) as doomed:
        await until(lambda: doomed.process.poll() is not None)
    assert doomed.process.poll() == -signal.SIGKILL, doomed.output
    assert await ledger.rows(HALF) == []
    gone = "select count(*) from gateway.events where body is null"
    assert await ledger.value(gone) == erased
    again = project.run("erase", "--account", ACCOUNT, *WHY)
    assert again.returncode == 0, again.stderr
    assert f"Erased {EVENTS - erased} events" in again.stdout
    assert await ledger.rows(HALF) == []
    assert await ledger.value(gone) == EVENTS


async def test_a_pause_holds_what_comes_in_until_it_is_resumed(
    project: Project, ledger: Reader
) -> None:
    refused = project.run("pause", "stripe", "count", "--reason", "mail is down")
    assert refused.returncode == 1
    assert "has no handler 'count': known are handlers.effects.count" in refused.stderr
    paused = project.run("pause", *COUNT, "--reason", "mail is down")
    assert (paused.returncode, paused.stdout.splitlines()) == (
        0,
        ["stripe handlers.effects.count: paused", "Waiting, as will what comes in: 0"],
    )
    with (
        project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving,
        project.process("worker"),
    ):
        await serving.ready()
        await serving.post_all([stripe_request(f"evt_{n}") for n in range(5)])
        await serving.post_all([stripe_request("evt_slow", "slow.one")])
        await until(lambda: ledger.value("select count(*) = 1 from public.effects"))
        status = project.run("status").stdout
        assert "mail is down" in status
        shown = json.loads(project.run("status", "--json").stdout)[0]["pauses"]
        assert [(p["route"], p["handler"], p["reason"]) for p in shown] == [
            (*COUNT, "mail is down")
        ]
        remote = ("--url", serving.url)
        resumed = project.run("resume", *COUNT, *remote, GATEWAY_ADMIN_TOKEN=TOKEN)
        assert resumed.stdout.splitlines()[-1] == "Waiting until now: 6", resumed.stderr
        await until(lambda: ledger.value("select count(*) = 7 from public.effects"))
    again = project.run("resume", *COUNT)
    assert (again.returncode, again.stderr) == (
        1,
        "error: stripe handlers.effects.count is not paused\n",
    )


async def test_an_erasure_is_counted_first_and_ordered_in_words(
    project: Project, ledger: Reader
) -> None:
    await ledger.run(FILL)
    for wrong in (
        ["erase", *WHY],
        ["erase", "--account", ACCOUNT, "--event", "evt_1", *WHY],
        ["erase", "--account", ACCOUNT],
        ["erase", "--account", ACCOUNT, "--reason", "why"],
    ):
        assert project.run(*wrong).returncode == 2, wrong
    named = project.run("erase", "--account", ACCOUNT, "--reason", f"for {ACCOUNT}", "--yes")
    assert (named.returncode, "found the account in it" in named.stderr) == (1, True)
    counted = project.run("erase", "--account", ACCOUNT, "--dry-run")
    assert (counted.returncode, counted.stdout) == (
        0,
        "450 events; 150 deliveries that wait and 150 dead letters will be discarded.\n",
    )
    assert await ledger.value("select count(*) from gateway.payloads") == EVENTS
    await ledger.run(
        "update gateway.deliveries set status = 'running', lease_token = gen_random_uuid(),"
        " leased_at = now(), leased_until = now() + interval '1 h' where event_id = 'evt_3'"
    )
    left = project.run("erase", "--account", ACCOUNT, *WHY)
    assert left.returncode == 1
    assert "Erased 449 events, 299 deliveries discarded." in left.stdout
    assert "error: evt_3 on stripe runs: left as it is" in left.stderr
    shown = project.run("show", "evt_1").stdout
    assert "payload      erased by " in shown
    assert ": request 7" in shown
    assert "Grace" not in shown
    await ledger.run(
        "insert into gateway.audit (actor, action, delivery_id, reason)"
        " values ('bob', 'replay', 4711, 'acct_long_gone called')"
    )
    none = project.run("erase", "--account", "acct_long_gone", *WHY)
    assert (none.returncode, none.stdout) == (
        0,
        "There are no events to erase.\nErased 0 events, 0 deliveries discarded.\n",
    )
    assert await ledger.value("select reason is null from gateway.audit where actor = 'bob'")


async def test_erase_and_prune_from_afar(project: Project, ledger: Reader) -> None:
    await ledger.run(FILL)
    await ledger.run("update gateway.processed_events set received_at = now() - interval '40 d'")
    await ledger.run(
        "update gateway.deliveries set finished_at = now() - interval '40 d' where status = 'done'"
    )
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
        await serving.ready()
        remote = ("--url", serving.url)
        for more in (["--dry-run"], []):
            pruned = project.run("prune", *more, *remote, GATEWAY_ADMIN_TOKEN=TOKEN)
            assert pruned.returncode == 0, pruned.stderr
            assert "150 events, 0 payloads, 0 dead letters, 0 audit rows," in pruned.stdout
        erased = project.run(
            "erase", "--account", ACCOUNT, *WHY, *remote, GATEWAY_ADMIN_TOKEN=TOKEN
        )
        assert "Erased 300 events, 300 deliveries discarded." in erased.stdout, erased.stderr
    actors = await ledger.rows("select distinct actor from gateway.audit where action = 'erase'")
    assert [row["actor"].endswith(" (api)") for row in actors] == [True]
    local = project.run("prune")
    assert local.stdout == (
        "Forgotten: 0 events, 0 payloads, 0 dead letters, 0 audit rows, 0 days of payloads or"
        " attempts.\n"
    )
