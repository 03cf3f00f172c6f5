"""How each statement finds its rows in a ledger that has grown: by an index, whatever is asked."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from gateway.console.pages import PAGES
from gateway.dev.embedded import Postgres, Redis
from gateway.ledger.connection import PREPARED_ONCE, QUERIES, Connection
from gateway.ledger.filter import Filter
from tests.support.databases import TEMPLATE, drop, on_database, run_sql
from tests.support.processes import Project
from tests.support.waiting import PATIENCE_S, until

GENERIC: Final = "force_generic_plan"
CUSTOM: Final = "force_custom_plan"

EVENTS: Final = 120_000
PENDING_FROM: Final = EVENTS - 3_000
RUNNING_FROM: Final = PENDING_FROM - 100
GROWN: Final = frozenset(
    {
        "processed_events",
        "deliveries",
        "audit",
        "effects",
        "once_keys",
        "gaps",
        "refusals",
        "tallies",
    }
)

FILL: Final = f"""
create temp table past as
select n, 'evt_' || reverse(lpad(n::text, 6, '0')) as event_id, 'handlers.h' || n % 4 as handler,
       case when n % 20 = 0 then 'rare' when n % 3 = 0 then 'github' else 'stripe' end as route,
       now() - ({EVENTS} - n) * interval '30 s' as at,
       case when n >= {PENDING_FROM} then 'pending' when n >= {RUNNING_FROM} then 'running'
            when n % 200 = 1 then 'dead' when n % 200 = 2 then 'discarded' else 'done' end as status
from generate_series(1, {EVENTS}) as n;

insert into gateway.processed_events
    (route, event_id, provider, type, account, received_at, digest, repeats, guard, sealed,
     payload_id, payload_until)
select route, event_id, 'stripe', case when n % 10000 = 7 then 'rare.type' else 'invoice.paid' end,
       case when n % 2 = 0 then 'acct_' || n % 50 end, at, sha256(event_id::bytea),
       case when route = 'github' then 'refuse' end,
       case when route = 'github' then sha256(event_id::bytea) end, route = 'rare',
       n, gateway.forget_on(at, '14 days')
from past;
set timezone = 'UTC';
do $$
declare
    day date;
begin
    for n in -7 .. 45 loop
        day := current_date + n;
        if n between -2 and 24 then
            execute format('create table if not exists gateway.payloads_%s partition of'
                           ' gateway.payloads for values from (%L) to (%L)',
                           to_char(day, 'YYYYMMDD'), day, day + 1);
        end if;
        if extract(isodow from day) = 1 then
            execute format('create table if not exists gateway.attempts_%s partition of'
                           ' gateway.attempts for values from (%L) to (%L)',
                           to_char(day, 'YYYYMMDD'), day, day + 1);
        end if;
    end loop;
end
$$;
insert into gateway.payloads (id, until, route, event_id, body, key_id)
select n, gateway.forget_on(at, '14 days'), route, event_id, '\\x7b7d',
       case when route = 'rare' then '0123456789abcdef' end
from past where gateway.forget_on(at, '14 days') >= current_date - 2;

insert into gateway.deliveries
    (id, route, event_id, handler, status, attempts, runs, due_at, created_at, lease_token,
     leased_at, leased_until, finished_at, order_key)
overriding system value
select n, route, event_id, handler, status, 1, 1,
       case when status = 'pending' and n % 3 = 2 then 'infinity' else at end, at,
       case when status = 'running' then lpad(to_hex(n), 32, '0')::uuid end, at,
       case when status = 'running' then at + interval '1 h' end,
       case when status not in ('pending', 'running') then at end,
       case when n % 3 = 2 then 'key_' || n % 500 end
from past;
select setval(pg_get_serial_sequence('gateway.deliveries', 'id'), {EVENTS});

insert into gateway.attempts
    (delivery_id, number, started_at, finished_at, outcome, key_id, until)
select n, 1, at, at, 'done', case when route = 'rare' then '0123456789abcdef' end,
       gateway.forget_on(at, '35 days')
from past where status not in ('pending', 'running');

insert into gateway.effects (delivery_id, name, status, token, key_id, made_by)
select n, 'receipt', 'done', gen_random_uuid(),
       case when route = 'rare' then '0123456789abcdef' end, case when n % 8 = 0 then n - 4 end
from past where n % 4 = 0;

insert into gateway.effects (delivery_id, name, status, token, error, unknown_at)
select n, 'mail', 'unknown', gen_random_uuid(), 'HTTPStatusError 500', at
from past where n % 200 = 3;

insert into gateway.once_keys (route, handler, key, delivery_id, token, finished_at)
select route, handler, 'key_' || n, n, gen_random_uuid(), at from past where n % 4 = 0;

insert into gateway.handlers (route, handler, on_dead) values ('stripe', 'handlers.h1', 'block');
insert into gateway.places (route, handler, place) select 'stripe', 'handlers.h1', n
from generate_series(1, 100) as n;

insert into gateway.audit (at, actor, action, delivery_id, route, event_id)
select at, 'ann', 'replay', n, route, event_id from past where n % 4 = 0;

insert into gateway.gaps
    (route, event_id, run_id, type, handle, handled_at, occurred_at, is_first, status, closed_at)
select 'github', 'gap_' || n, n / 64, 'push', n::text, at, at, true,
       case when n >= {PENDING_FROM} then 'missing' else 'recovered' end,
       case when n < {PENDING_FROM} then at end
from past where n % 4 = 0;
insert into gateway.refusals (route, event_id, digest, refused_at)
select 'github', 'refused_' || n, sha256((n / 50)::text::bytea), at from past where n % 4 = 0;
insert into gateway.tallies (minute, route, handler, outcome, n, times)
select date_trunc('minute', now()) - n * interval '1 min', route, handler, 'done', 7, '{{0,3,4}}'
from generate_series(0, 11519) as n,
     (values ('stripe', ''), ('stripe', 'handlers.h1'), ('github', 'handlers.h2'), ('', ''))
         as k (route, handler);
"""  # noqa: S608 (our own numbers)
"""Forty days: nearly all done, a few thousand waiting, some dead, a hundred running."""

VACUUM: Final = "vacuum analyze"
TODAY: Final = datetime.now(UTC).date()
FULL: Final = {"payloads": (-2, 14), "attempts": (1, 34)}
"""Partitions that are full whatever the day and hour, in days from today.

The first and the last week of attempts have less than a week of rows, so that Postgres may rightly
read such a partition as a whole.
"""


def grows(table: str) -> bool:
    by_day = re.fullmatch(r"(payloads|attempts)_(\d{4})(\d{2})(\d{2})", table)
    if by_day is None:
        return table in GROWN
    first, last = FULL[by_day[1]]
    year, month, day = map(int, by_day.groups()[1:])
    return first <= (date(year, month, day) - TODAY).days <= last


DAY: Final = timedelta(days=1)
NOW: Final = datetime.now(UTC)
HOUR_AGO: Final = NOW - timedelta(hours=1)
BATCH: Final = 64
STEP: Final = 1_000
BLOCKS_PER_ROW: Final = 40
"""Tables and indexes together: a claimed event with its two deliveries takes 35."""
PENDING: Final = list(range(PENDING_FROM, PENDING_FROM + BATCH))
RUNNING: Final = list(range(RUNNING_FROM, RUNNING_FROM + BATCH))
TOKENS: Final = [UUID(int=n) for n in RUNNING]
WORKER: Final = UUID(int=7)
BYTES: Final = (32 * 1024**2, 64 * 1024)
NO_LARGE: Final = (0, 64 * 1024)
HANDLERS: Final = (["stripe", "github", "rare"], ["handlers.h1", "handlers.h2", "handlers.h0"])
KEPT: Final = (["stripe", "github", "rare"], [35 * DAY] * 3, [14 * DAY] * 3)
TURNS: Final = (
    ["stripe"] * BATCH,
    ["handlers.h1"] * BATCH,
    [f"key_{n}" for n in range(2, 2 + BATCH)],
)
JOB: Final = ("tasks", "job_1", "tasks", NOW, b"", b"{}", ["h1", "h2"], [None, "key_1"], None, None)
KEY_ID: Final = "0123456789abcdef"
START: Final = (datetime(1970, 1, 1, tzinfo=UTC), "", "")
OLDEST: Final = '{"(0,1)","(0,2)","(1,1)","(1,2)"}'


def event_id(n: int) -> str:
    return f"evt_{str(n).zfill(6)[::-1]}"


PAST: Final = [n for n in range(100_000, 101_000) if n % 3 and n % 20][:BATCH]
IDS: Final = [event_id(n) for n in PAST]
"""Of the route stripe, which is not encrypted."""
SEALED: Final = [n for n in range(100_000, 110_000) if n % 20 == 0][:BATCH]
SEALED_IDS: Final = [event_id(n) for n in SEALED]
"""Of the route rare, which is."""


UNTIL: Final = [TODAY + 14 * DAY + DAY * (7 - TODAY.weekday())] * BATCH
UNFINISHED: Final = EVENTS - RUNNING_FROM + EVENTS // 200


SUBJECT: Final = (
    ["stripe" if n % 20 else "rare" for n in range(60_001, 60_001 + 3 * BATCH, 3)],
    [event_id(n) for n in range(60_001, 60_001 + 3 * BATCH, 3)],
)


def new_claims() -> tuple[str, list[bytes]]:
    rows = [
        {
            "n": n, "route": "github", "event_id": f"new_{n}", "provider": "github", "type": "push",
            "received_at": NOW.isoformat(), "digest": f"{n:064x}", "headers": {},
            "repeats": "refuse", "handlers": ["handlers.h1", "handlers.h2"],
            "spooled": False,
        }
        for n in range(1, BATCH + 1)
    ]  # fmt: skip
    return json.dumps(rows), [b"{}"] * BATCH


def taken_claims() -> tuple[list[str], list[str], list[bytes]]:
    ids = [event_id(n) for n in range(3, 3 + 3 * BATCH, 3)]
    return ["github"] * BATCH, ids, [sha256(i.encode()).digest() for i in ids]


def over_windows() -> tuple[list[str], list[bytes], list[datetime]]:
    routes, _, digests = taken_claims()
    return routes, digests, [NOW] * BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to ask a named statement."""

    query: str
    arguments: tuple[Any, ...] = ()
    by: str = ""
    """What sets this case apart from the others of the same statement."""
    rows: int | None = 1
    """How many it is after: what it reads must not be much more. None for a walk: it goes on until
    it has found as many as were asked for, so that something rare takes it through all of its index
    (`since` and `until` bound it)."""

    def __str__(self) -> str:
        return f"{self.query}-{self.by}" if self.by else self.query


def listings() -> Iterator[Case]:
    """Both listings walk their index from the newest on. Without a limit they read everything, and
    may do so as they like."""
    filters = {
        "nothing": Filter(),
        "route": Filter(route="stripe"),
        "rare_route": Filter(route="rare"),
        "type": Filter(type="invoice.*"),
        "rare_type": Filter(type="rare.*"),
        "handler": Filter(handler="handlers.h3"),
        "account": Filter(account="acct_rare"),
        "since": Filter(since=NOW - DAY),
        "until": Filter(until=NOW - 20 * DAY),
        "everything": Filter(
            route="stripe", type="invoice.*", handler="handlers.h1",
            since=NOW - 9 * DAY, until=NOW - DAY,
        ),
    }  # fmt: skip
    for by, filter in filters.items():
        for after, mark, dead in (
            ("", (None,) * 3, (None,) * 2),
            ("_after", (NOW - DAY, "stripe", ""), (NOW - DAY, 2**40)),
        ):
            of_dead = (*filter.of_dead, 50, *dead, None, 2_000)
            yield Case(query="list_dead", arguments=of_dead, by=f"{by}{after}", rows=2_000)
            of_effects = (*filter.of_effects, 50, *dead, None if not after else "", 2_000)
            yield Case(
                query="list_unknown_effects",
                arguments=of_effects,
                by=f"{by}{after}",
                rows=EVENTS // 200,
            )
            asked = (filter.route, filter.type_pattern, filter.handler, None)
            when = (filter.since, filter.until, filter.account, None)
            walked = (*asked, *when, 50, 2_000, *mark)
            yield Case(query="list_event_keys", arguments=walked, by=f"{by}{after}", rows=2_000)


def reconciling() -> Iterator[Case]:
    """A run of which 64 gaps are open, among the thousands of the past."""
    run = PENDING_FROM // 64 + 2
    ids = [f"gap_{n}" for n in range(PENDING_FROM, EVENTS, 4)][:BATCH]
    refused = [f"new_{n}" for n in range(BATCH)]
    noted = [
        {
            "event_id": id, "type": "push", "handle": "1", "handled_at": NOW.isoformat(),
            "occurred_at": NOW.isoformat(), "is_first": True, "recorded": "504",
        }
        for id in ids
    ]  # fmt: skip
    many = {
        "find_unseen": ("github", [event_id(n) for n in range(3, 3 + 3 * BATCH, 3)], ["push"]),
        "note_gaps": ("github", run, json.dumps(noted), True),
        "close_gaps": (run, ["push"]),
        "give_up_gaps": ("github", ids, ["gone"] * BATCH),
        "give_up_old_gaps": (run, 3, timedelta(minutes=5), NOW - 3 * DAY, NOW - 30 * DAY),
        "next_gaps": (run, timedelta(minutes=5), NOW, BATCH),
        "count_reasons": (run, BATCH),
        "list_gaps": (run, BATCH),
        "count_reconciliation": (run, None),
        "note_refusals": (["github"] * BATCH, refused, [b"digest"] * BATCH, 100),
    }
    for query, arguments in many.items():
        yield Case(query=query, arguments=arguments, rows=BATCH)
    yield Case(query="adopt_gaps", arguments=("github", 1), rows=(EVENTS - PENDING_FROM) // 4)
    yield Case(query="ask_gap", arguments=("github", ids[0], run, ["push"]))
    yield Case(query="explain_gap", arguments=("github", ids[0], "no answer", True))
    yield Case(query="forget_gaps", arguments=(DAY, STEP), rows=STEP)
    yield Case(query="forget_refusals", arguments=(DAY, STEP), rows=STEP)


def bulk_steps() -> Iterator[Case]:
    """The steps of a bulk operation walk from its cursor, whatever its action."""
    filters = {
        "nothing": Filter(),
        "route": Filter(route="stripe", since=NOW - 9 * DAY, until=NOW - DAY),
        "rare_type": Filter(type="rare.*"),
        "error": Filter(error="time*out", handler="handlers.h1", account="acct_rare"),
    }
    for by, filter in filters.items():
        asked = filter.of_dead
        most = (50, None, None)
        yield Case(query="group_dead", arguments=(*asked, NOW, *most), by=by, rows=EVENTS // 200)
        counted = (*asked, NOW, None)
        yield Case(query="count_dead_effects", arguments=counted, by=by, rows=EVENTS // 200)
        spans = (filter.since, filter.until, NOW, 100)
        yield Case(query="has_dead_beyond", arguments=spans, by=by, rows=EVENTS // 200)
        place = (7, NOW - 20 * DAY, 0, NOW, STEP, None)
        yield Case(query="walk_dead", arguments=(*asked, *place), by=by, rows=EVENTS // 200)
        asked = (*filter.of_effects, NOW, 50)
        yield Case(query="group_unknown_effects", arguments=asked, by=by, rows=EVENTS // 200)
        asked = (*filter.of_effects, NOW - 20 * DAY, 0, "", NOW, STEP)
        yield Case(query="walk_unknown_effects", arguments=asked, by=by, rows=EVENTS // 200)
    times = (NOW - 2 * DAY, None, NOW)
    for by, account in {"all": None, "account": "acct_rare"}.items():
        asked = (["stripe", "rare"], "handlers.new", *times, "invoice.%", account)
        yield Case(query="count_undelivered", arguments=asked, by=by, rows=2 * 2880)
        yield Case(query="count_done_by_others", arguments=asked, by=by, rows=2 * 2880)
        asked = (["stripe", "rare"], "handlers.new", "invoice.%", account, None)
        asked = (*asked, NOW - 2 * DAY, "", "", NOW, STEP)
        yield Case(query="walk_events", arguments=asked, by=by, rows=STEP)


UNKNOWN: Final = list(range(3, 3 + 200 * BATCH, 200))
DEAD: Final = list(range(EVENTS // 2 + 1, EVENTS // 2 + 1 + 200 * BATCH, 200))

CASES: Final = [
    Case(query="claim", arguments=new_claims(), rows=BATCH),
    Case(query="find_claims", arguments=taken_claims(), rows=BATCH),
    Case(query="end_windows", arguments=over_windows(), rows=BATCH),
    Case(query="lease_hinted", arguments=(PENDING, *HANDLERS, DAY, *BYTES), rows=BATCH),
    Case(query="lease_due", arguments=(*HANDLERS, BATCH, DAY, *BYTES, False), rows=BATCH),
    Case(
        query="lease_due",
        arguments=(*HANDLERS, BATCH, DAY, *NO_LARGE, False),
        by="small",
        rows=EVENTS - PENDING_FROM,
    ),
    Case(query="find_suspects", arguments=HANDLERS),
    Case(
        query="lease_limited",
        arguments=("stripe", "handlers.h1", BATCH, timedelta(minutes=1), BATCH, DAY, *BYTES, False),
        rows=BATCH,
    ),
    Case(
        query="lease_limited",
        arguments=(
            *("stripe", "handlers.h1", BATCH, timedelta(minutes=1), BATCH, DAY),
            *(*NO_LARGE, False),
        ),
        by="small",
        rows=EVENTS - PENDING_FROM,
    ),
    Case(query="read_leased", arguments=(RUNNING, TOKENS), rows=BATCH),
    Case(query="next_place", arguments=("stripe", "handlers.h1"), rows=100),
    Case(query="advance", arguments=TURNS, rows=BATCH),
    Case(query="find_stuck", arguments=("stripe", "handlers.h1", "", BATCH), rows=BATCH),
    Case(query="find_due", arguments=(PENDING, *HANDLERS), rows=BATCH),
    Case(
        query="reserve_once",
        arguments=("stripe", "handlers.h0", "key_new", RUNNING[0], TOKENS[0], "key_old"),
    ),
    Case(query="keep_once", arguments=("stripe", "handlers.h0", "key_100", 100, TOKENS[0], "a")),
    Case(query="begin_effect", arguments=(RUNNING[0], TOKENS[0], "receipt", True, None)),
    Case(
        query="reserve_effect",
        arguments=("stripe", "handlers.h0", "key_new", RUNNING[0], TOKENS[0], "key_old"),
    ),
    Case(query="hold_effect_key", arguments=("stripe", "handlers.h0", "key_100", "key_old")),
    Case(query="read_effect_of_key", arguments=(100, RUNNING[0], "receipt", "former")),
    Case(query="take_effect_key", arguments=("stripe", "handlers.h0", "key_100", 7, TOKENS[0])),
    Case(query="free_effect_key", arguments=("stripe", "handlers.h0", "key_100", 100)),
    Case(query="rename_effect", arguments=(100, "receipt", "receipt per a", "a")),
    Case(query="forget_effect_link", arguments=(100, "receipt")),
    Case(
        query="take_effect",
        arguments=(7, TOKENS[0], "receipt", "a", 100, "receipt", True, 1, None, NOW),
    ),
    Case(
        query="link_effect",
        arguments=(7, TOKENS[0], "receipt", "a", 100, True, NOW, "null", None, None),
    ),
    Case(query="finish_effect", arguments=(100, "receipt", TOKENS[0], "null", None, None)),
    Case(
        query="release_effect",
        arguments=(100, "receipt", TOKENS[0], "stripe", "handlers.h0", "key_100", None, True, None),
    ),
    Case(query="publish", arguments=JOB, rows=2),
    Case(query="renew", arguments=(RUNNING, TOKENS, WORKER, DAY), rows=BATCH),
    Case(
        query="settle",
        arguments=(
            RUNNING[0],
            TOKENS[0],
            "done",
            "done",
            1,
            timedelta(),
            *(None,) * 2,
            10,
            *(None,) * 2,
        ),
        by="done",
        rows=2,
    ),
    Case(
        query="settle",
        arguments=(RUNNING[0], TOKENS[0], "pending", "lost", 0, DAY, "gone", None, 10, None, None),
        by="lost",
        rows=2,
    ),
    Case(
        query="settle",
        arguments=(
            *(RUNNING[0], TOKENS[0], "dead", "dead", 1, DAY, "gone", None, 10),
            *(b"sealed", KEY_ID),
        ),
        by="sealed",
        rows=2,
    ),
    Case(query="forget_in_vain", arguments=(RUNNING[0], 100)),
    Case(query="reap", arguments=(200, 10, timedelta()), rows=100),
    Case(query="replay", arguments=(100_000, "ann", None, True), rows=2),
    Case(query="count_effects_of", arguments=(100_000,)),
    Case(query="discard", arguments=(PENDING[0], "ann", None)),
    Case(query="replay_dead", arguments=(DEAD, NOW, "ann", None, 7, True), rows=BATCH),
    Case(query="discard_dead", arguments=(DEAD, NOW, "ann", None, 7), rows=BATCH),
    Case(
        query="deliver_events",
        arguments=(
            ["github"] * BATCH,
            [event_id(n) for n in range(99_003, 99_003 + 3 * BATCH, 3)],
            [None] * BATCH,
            "handlers.new",
            "ann",
            None,
            7,
        ),
        rows=BATCH,
    ),
    Case(query="read_payload", arguments=("github", event_id(99_003))),
    *bulk_steps(),
    Case(query="set_back", arguments=(DAY, DAY), rows=None),
    Case(query="expire_dead", arguments=("stripe", 30 * DAY, STEP), rows=STEP),
    Case(query="hold_events", arguments=(35 * DAY, *START, STEP, *KEPT), by="keys", rows=STEP),
    Case(
        query="hold_events",
        arguments=(14 * DAY, NOW - 20 * DAY, "", "", STEP, *KEPT),
        by="payloads",
        rows=STEP,
    ),
    Case(query="prune_events", arguments=(OLDEST, *KEPT, 75), rows=4),
    Case(query="find_wanted_payloads", arguments=(BATCH,), rows=UNFINISHED),
    Case(query="find_wanted_attempts", arguments=(BATCH,), rows=UNFINISHED),
    Case(query="find_misfiled", arguments=(BATCH,), rows=100),
    Case(query="find_misfiled_attempts", arguments=(BATCH,), rows=100),
    Case(
        query="refile_payloads",
        arguments=(["stripe"] * BATCH, IDS, [TODAY + 12 * DAY] * BATCH),
        rows=3 * BATCH,
    ),
    Case(query="refile_attempts", arguments=(PAST, UNTIL), rows=3 * BATCH),
    Case(query="forget_misfiled_payloads", arguments=(BATCH, TODAY), rows=100),
    Case(query="forget_misfiled_attempts", arguments=(BATCH, TODAY), rows=100),
    Case(query="pause", arguments=("stripe", "handlers.h1", "ann", "mail is down")),
    Case(query="resume", arguments=("stripe", "handlers.h1", "ann", None)),
    Case(query="until_begun", arguments=("stripe", "", timedelta(seconds=1)), rows=100),
    Case(query="list_known_handlers", rows=4 * 3),
    Case(query="find_route_history", arguments=(["stripe", "nowhere"],)),
    Case(query="find_handler_history", arguments=(["handlers.h1", "handlers.none"],), rows=2_000),
    Case(query="count_held", arguments=("stripe", ""), rows=EVENTS - RUNNING_FROM),
    Case(query="find_resumed", arguments=(*HANDLERS, 50), rows=3 * 50),
    Case(query="expire_audit", arguments=(30 * DAY, STEP), rows=STEP),
    Case(query="count_prunable", arguments=(14 * DAY, *START, STEP, *KEPT), rows=STEP),
    Case(
        query="count_expired",
        arguments=(KEPT[0], [30 * DAY] * 3, 30 * DAY),
        rows=EVENTS // 4,
    ),
    Case(query="list_routes", rows=3),
    Case(query="find_subject", arguments=("acct_1", *START, None, BATCH), rows=BATCH),
    Case(query="count_subject", arguments=SUBJECT, rows=BATCH),
    Case(query="hold_subject", arguments=SUBJECT, rows=BATCH),
    Case(query="hold_deliveries", arguments=SUBJECT, rows=BATCH),
    Case(
        query="erase_events",
        arguments=(*SUBJECT, list(range(60_001, 60_001 + 3 * BATCH)), "ann", "asked"),
        rows=2 * BATCH,
    ),
    Case(query="find_erasure", arguments=("stripe", event_id(7))),
    *listings(),
    Case(
        query="list_event_keys",
        arguments=(*(None,) * 7, "in_7", 50, 2_000, *(None,) * 3),
        by="object",
        rows=50,
    ),
    Case(
        query="list_event_keys",
        arguments=(*(None,) * 3, "dead", *(None,) * 4, 50, 2_000, *(None,) * 3),
        by="status",
        rows=2_000,
    ),
    Case(
        query="list_event_keys",
        arguments=(*(None,) * 5, NOW - 20 * DAY, None, None, 1, 1, *(None,) * 3),
        by="one_of_long_ago",
    ),
    Case(
        query="read_events", arguments=(["stripe"] * 50, [event_id(n) for n in range(50)]), rows=50
    ),
    Case(
        query="list_dead",
        arguments=(*(None,) * 7, 50, None, None, 7, 50),
        by="cause",
        rows=50,
    ),
    Case(query="try_turn", arguments=(7,)),
    Case(query="take_turn", arguments=(7,)),
    Case(query="tell_causes", arguments=(BATCH,), rows=BATCH),
    Case(query="forget_causes", rows=10),
    Case(query="count_causes", arguments=(None, None, None, 20), rows=EVENTS // 200),
    Case(query="history_start", arguments=("hour", DAY)),
    Case(query="history_by_minute", arguments=(NOW - timedelta(hours=1),), rows=60),
    Case(query="history_by_hour", arguments=(NOW - 7 * DAY,), rows=168),
    Case(query="times_by_minute", arguments=(NOW - timedelta(hours=1), ["done"]), rows=60),
    Case(query="times_by_hour", arguments=(NOW - 7 * DAY, ["done"]), rows=168),
    Case(query="list_sizes", rows=100),
    Case(query="find_events", arguments=(None, event_id(7)), by="id"),
    Case(query="find_events", arguments=(["stripe"], event_id(7)), by="id_and_route"),
    Case(query="find_delivery", arguments=(7,)),
    Case(query="find_job", arguments=("stripe", event_id(7))),
    Case(query="list_deliveries", arguments=("stripe", event_id(7))),
    Case(query="list_attempts", arguments=(PENDING,), rows=BATCH),
    Case(query="list_effects", arguments=(PENDING,), rows=BATCH),
    Case(query="find_unknown_effects", arguments=(UNKNOWN[0], None, True)),
    Case(query="find_effect_alerts", arguments=(NOW, 1, 10_000), rows=EVENTS // 200),
    Case(
        query="describe_effects",
        arguments=(["stripe"], ["handlers.h3"], 10_000),
        rows=EVENTS // 200,
    ),
    Case(query="count_unknown_effects", arguments=(10_000,), rows=EVENTS // 200),
    Case(query="note_effect_error", arguments=(UNKNOWN[0], "mail", TOKENS[0], "ReadTimeout")),
    Case(query="mark_effects_unknown", arguments=(RUNNING[0], TOKENS[0])),
    Case(query="mark_own_effects", arguments=(RUNNING[0],)),
    Case(
        query="retry_effects",
        arguments=(UNKNOWN, ["mail"] * BATCH, "ann", None, 7),
        rows=BATCH,
    ),
    Case(
        query="confirm_effects",
        arguments=(UNKNOWN, ["mail"] * BATCH, "ann", None, 7),
        rows=BATCH,
    ),
    Case(query="list_audit", arguments=(PENDING,), rows=BATCH),
    Case(query="list_all_audit", arguments=(50, None), rows=50),
    *reconciling(),
    Case(query="find_unsettled", arguments=(200,), rows=2 * 12),
    Case(
        query="count_unsettled",
        arguments=(*HANDLERS, BATCH, timedelta(hours=1)),
        rows=3 * 4 * BATCH,
    ),
    Case(query="count_running", arguments=(BATCH,), rows=BATCH),
    Case(query="count_gaps", arguments=(BATCH,), rows=2 * BATCH),
    Case(query="count_blocked", rows=EVENTS - RUNNING_FROM),
    Case(
        query="add_tallies",
        arguments=(
            timedelta(),
            8 * DAY,
            ["stripe"] * 2,
            ["", "handlers.h1"],
            ["done"] * 2,
            [1, 2],
            ["{1}", "{}"],
            90 * DAY,
        ),
        rows=10,
    ),
    Case(query="has_events", arguments=("rare",)),
    Case(query="find_oldest_dead"),
    Case(query="count_overdue", arguments=(*KEPT[:2], DAY), rows=100),
    Case(query="sum_tallies", arguments=(HOUR_AGO, NOW), rows=4 * 60),
    Case(query="sum_times", arguments=(HOUR_AGO, ["done"]), rows=4 * 60),
    Case(query="find_dead_alerts", arguments=(NOW, 1), by="any", rows=2),
    Case(query="find_dead_alerts", arguments=(NOW, BATCH), by="many", rows=2 * BATCH),
    Case(query="find_backlog_alerts", arguments=(NOW,), rows=10),
    Case(query="describe_dead", arguments=(*HANDLERS, BATCH), rows=3 * BATCH),
    Case(query="describe_backlog", arguments=(*HANDLERS, BATCH, NOW), rows=3 * BATCH),
    Case(query="count_keys", arguments=(100,), rows=300),
    Case(query="find_events_under", arguments=(KEY_ID, 0, None, BATCH, 10**6), rows=BATCH),
    Case(query="find_attempts_under", arguments=(KEY_ID, 0, 0, None, BATCH, 10**6), rows=BATCH),
    Case(query="find_effects_under", arguments=(KEY_ID, 0, "", None, BATCH, 10**6), rows=BATCH),
    Case(
        query="reseal_events",
        arguments=(["rare"] * BATCH, SEALED_IDS, [b"sealed"] * BATCH, KEY_ID, "new"),
        rows=BATCH,
    ),
    Case(
        query="reseal_attempts",
        arguments=(SEALED, [1] * BATCH, UNTIL, [b"sealed"] * BATCH, KEY_ID, "new"),
        rows=BATCH,
    ),
    Case(
        query="reseal_effects",
        arguments=(SEALED, ["receipt"] * BATCH, [b"sealed"] * BATCH, KEY_ID, "new"),
        rows=BATCH,
    ),
    Case(query="find_past", arguments=("stripe", "evt_1", BATCH), rows=BATCH),
    Case(query="find_unsealed", arguments=(["rare"], DAY, BATCH), rows=BATCH),
    Case(query="read_past", arguments=("stripe", IDS), rows=BATCH),
    Case(query="read_past_deliveries", arguments=("stripe", IDS), rows=BATCH),
    Case(query="read_past_attempts", arguments=(PAST,), rows=BATCH),
    Case(query="list_once_keys", arguments=(PENDING,), rows=BATCH),
    Case(
        query="seal_past_events",
        arguments=("stripe", IDS, [b"digest"] * BATCH, [None] * BATCH),
        rows=BATCH,
    ),
    Case(
        query="seal_past_payloads",
        arguments=(PAST[:4], [TODAY + 8 * DAY] * 4, [b"sealed"] * 4, KEY_ID),
        rows=8,  # looked for under every day
    ),
    Case(
        query="seal_past_deliveries",
        arguments=(PENDING, ["KeyError"] * BATCH, [None] * BATCH),
        rows=BATCH,
    ),
    Case(
        query="seal_past_attempts",
        arguments=(SEALED, [1] * BATCH, UNTIL, [""] * BATCH, [b"sealed"] * BATCH, KEY_ID),
        rows=BATCH,
    ),
    Case(
        query="seal_past_effects",
        arguments=(
            *(SEALED, ["receipt"] * BATCH, ["receipt per a"] * BATCH, ["a"] * BATCH),
            *([b"sealed"] * BATCH, KEY_ID),
        ),
        rows=BATCH,
    ),
    Case(
        query="move_once_keys",
        arguments=("stripe", ["handlers.h0"], ["key_100"], ["digest:a"]),
        rows=2,
    ),
    Case(query="note_rekey", arguments=("ann", None, None)),
    Case(query="note_reveal", arguments=("ann", None, ["stripe"], ["evt_1"])),
    Case(query="note_test", arguments=("ann",)),
    Case(query="note_test_event", arguments=("ann", "stripe", "invoice.paid")),
    Case(query="compare_clocks", arguments=(100,), rows=100),
]

ASIDE: Final = {
    "describe_partitions", "detach_partition", "drop_partition", "find_holders", "keep_retention",
    "list_due_partitions", "make_partitions",
    "abandon_reconciliations", "add_secret_uses", "alive", "await_prune", "begin_bulk",
    "begin_reconciliation", "count_rejected_of", "end_reconciliation",
    "end_session", "has_ended",
    "erase_rejected", "find_idle_transactions", "find_leasing", "find_bulk", "find_paused",
    "find_reconciliation", "find_rejected", "find_rejected_under", "reseal_rejected",
    "find_resumable", "forget_destinations",
    "forget_reconciliations", "forget_rejected", "forget_reload", "group_rejected",
    "hold_bulk", "hold_rejected", "is_encrypted", "keep_alert", "keep_places", "keep_policies",
    "count_items", "keep_rejected", "keep_reload", "measure_items",
    "keep_names", "last_reconciliations", "last_scheduled", "leave", "list_names", "lock_names",
    "list_alerts", "list_bloated", "list_exhausted", "list_messages",
    "list_bulk", "list_pauses", "list_reconciliations", "list_rejected", "list_reloads",
    "list_secret_uses", "list_totals", "list_workers", "lock_rejected", "step_bulk",
    "mark_released", "mark_repeated", "measure_server", "next_rejected", "note_sent",
    "note_unsent", "put_message", "read_clock", "read_defaults", "read_durability", "read_limits",
    "read_privileges", "resume_bulk", "resume_reconciliation", "silence_alerts", "start_evaluation",
    "start_prune",
    "start_reconciliation",
    "step_reconciliation", "stop_bulk", "take_messages", "take_reconciliation",
    "trim_rejected",
}  # fmt: skip
"""These touch no table that grows."""

WHOLE: Final = {"scrub_words", "find_longer_kept"}
"""These are meant to read one from end to end."""


@pytest.fixture(scope="module")
def full_url(postgres: Postgres) -> Iterator[str]:
    """A database of this module's own, with a past in it."""
    name = f"test_{uuid4().hex}"
    asyncio.run(run_sql(postgres.url, f'create database "{name}" template "{TEMPLATE}"'))
    url = on_database(postgres.url, name)
    asyncio.run(run_sql(url, FILL, VACUUM))
    yield url
    asyncio.run(drop(postgres.url, name))


@pytest.fixture(params=[GENERIC, CUSTOM])
async def session(full_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Connection]:
    """A session that plans once for all arguments, as a worker's does, or anew for each."""
    settings = {"plan_cache_mode": request.param}
    connection = await asyncpg.connect(full_url, server_settings=settings)
    yield connection
    await connection.close()


def test_a_workers_sessions_plan_once() -> None:
    assert PREPARED_ONCE["plan_cache_mode"] == GENERIC


async def test_no_plan_of_a_workers_session_is_compiled(full_url: str) -> None:
    """With a large backlog a lease looks costly, and compiling it took longer than running it."""
    connection = await asyncpg.connect(full_url, server_settings={**PREPARED_ONCE})
    await connection.execute("set jit_above_cost = 0")
    plan = await connection.fetchval("explain (analyze, format json) select count(*) from pg_class")
    assert "JIT" not in json.loads(plan)[0]
    await connection.close()


def test_every_statement_has_a_case() -> None:
    assert {case.query for case in CASES} == set(QUERIES) - ASIDE - WHOLE


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_no_table_that_grows_is_read_from_end_to_end(case: Case, session: Connection) -> None:
    sql = QUERIES[case.query]
    assert scanned(await read_plan(session, sql, case.arguments)) == []
    scans, blocks = await count_reads(session, sql, case.arguments)
    assert scans == {}
    if case.rows is not None:
        assert blocks <= (case.rows + 1) * BLOCKS_PER_ROW


ID: Final = "evt_100001"
TOKEN: Final = "reader-token-of-the-plans-suite"
FILTERED: Final = (
    *("route=rare", "type=rare.type", "account=acct_6", "since=7d", "until=1d"),
    *("handler=handlers.h1", "route=github&type=invoice.paid&since=30d"),
)
ASKED: Final = {
    "/": ("", "span=24h", "span=7d"),
    "/events": ("", *FILTERED, "status=dead", "status=pending", "object=in_1", f"q={ID}", "q=none"),
    "/event": (f"route=stripe&id={ID}",),
    "/event/fixture.json": (f"route=stripe&id={ID}",),
    "/dead": ("", *FILTERED, "error=Boom", "cause=1"),
    "/dead/all": tuple(f"action=replay&{asked}" for asked in (*FILTERED, "error=Boom", "cause=1")),
    "/effects": ("", *FILTERED, "error=Boom", "effect=mail"),
    "/effects/all": tuple(f"action=retry&{asked}" for asked in (*FILTERED, "effect=mail")),
    "/bulk": ("",),
    "/bulk/1": ("",),
    "/handlers": ("",),
    "/rejected": ("", "route=stripe&code=BAD_SIGNATURE&since=1d"),
    "/rejected/1": ("", "body=1"),
    "/routes": ("",),
    "/reconcile": ("", "route=github"),
    "/reconcile/1": ("",),
    "/system": ("",),
    "/system/doctor": ("",),
}
"""What the pages of the console can be asked for."""


async def test_no_page_reads_a_table_that_grows_from_end_to_end(
    full_url: str, redis: Redis, tmp_path: Path
) -> None:
    """By what Postgres counts of a whole `serve`, also of what no case above has thought of."""
    assert {re.sub(r"\{\w+\}", "1", path) for path in PAGES} == ASKED.keys()
    project = Project(tmp_path, full_url, redis.url)
    before = await _scans(full_url)
    with project.serve(GATEWAY_READ_TOKEN=TOKEN) as serving:
        await serving.ready()
        async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
            own = {"origin": serving.url}
            await client.post("/console/login", data={"token": TOKEN}, headers=own)
            for path, queries in ASKED.items():
                for query in queries:
                    answer = await client.get(f"/console{path}?{query}")
                    assert answer.status_code in (200, 303, 404, 409), (path, query)
                    assert "/login" not in answer.headers.get("location", ""), "not logged in"
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert (await client.get("/metrics", headers=bearer)).status_code == 200
    # Sessions tell what they did at their end.
    after = await _scans(full_url)
    assert {table: after[table] - n for table, n in before.items() if after[table] > n} == {}


async def _scans(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    alone = "select count(*) = 1 from pg_stat_activity where datname = current_database()"
    await until(lambda: connection.fetchval(alone))
    rows = await connection.fetch(
        "select relname, seq_scan from pg_stat_user_tables where schemaname = 'gateway'"
    )
    await connection.close()
    return {row[0]: row[1] for row in rows if grows(row[0])}


@pytest.mark.parametrize("query", ["hold_events", "prune_events"])
async def test_a_prune_that_was_planned_on_an_empty_ledger_scans_no_full_one(
    query: str, database_url: str
) -> None:
    """A session keeps its plans until the table is analyzed, which may be a minute later."""
    case = next(case for case in CASES if case.query == query)
    session = await asyncpg.connect(database_url, server_settings={"plan_cache_mode": GENERIC})
    async with session.transaction():
        assert await session.fetchval(QUERIES["start_prune"], 1)
        assert scanned(await read_plan(session, QUERIES[query], case.arguments)) == []
    assert scanned(await read_plan(session, QUERIES[query], case.arguments)) != []
    await session.close()


async def read_plan(session: Connection, sql: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The plan that this session would use."""
    if await session.fetchval("show plan_cache_mode") == CUSTOM:
        plan = await session.fetchval(f"explain (format json) {sql}", *arguments)
    else:
        nulls = ", ".join(["null"] * len(arguments))
        await session.execute(f"prepare asked as {sql}")
        plan = await session.fetchval(
            f"explain (format json) execute asked{f'({nulls})' if nulls else ''}"
        )
        await session.execute("deallocate asked")
    found: dict[str, Any] = json.loads(plan)[0]["Plan"]
    return found


def scanned(plan: dict[str, Any]) -> list[str]:
    """Tables that grow and that this plan reads as a whole."""
    below = [table for part in plan.get("Plans", ()) for table in scanned(part)]
    if plan["Node Type"] == "Seq Scan" and grows(plan["Relation Name"]):
        return [plan["Relation Name"], *below]
    return below


async def count_reads(
    session: Connection, sql: str, arguments: tuple[Any, ...]
) -> tuple[dict[str, int], int]:
    """Scans of each table and blocks of all of them when it is run, functions included."""
    transaction = session.transaction()
    await transaction.start()
    before = await _reads(session)
    await session.fetch(sql, *arguments)
    after = await _reads(session)
    await transaction.rollback()
    scans = {table: after[table].scans - before[table].scans for table in after if grows(table)}
    blocks = sum(after[name].blocks - before[name].blocks for name in after)
    return {table: n for table, n in scans.items() if n}, blocks


class Reads(NamedTuple):
    scans: int
    blocks: int


async def _reads(session: Connection) -> dict[str, Reads]:
    """What this session has read so far of each table and index."""
    rows = await session.fetch(
        "select relname, pg_stat_get_xact_numscans(oid), pg_stat_get_xact_blocks_fetched(oid)"
        " from pg_class where relnamespace = 'gateway'::regnamespace"
    )
    return {row[0]: Reads(row[1], row[2]) for row in rows}
