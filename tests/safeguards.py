"""The safeguards: code that keeps a promise, and the test that fails without it.

`make safeguards` (tests/run_safeguards.py) removes one at a time and expects its test to fail.
`make docs` writes the table of docs/reliability.md from this list.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reliability.md"
TABLE: Final = re.compile(r"^(\| safeguard \| test \|\n\|---\|---\|\n)(?:\|.*\n)*", re.MULTILINE)
MIGRATIONS: Final = "gateway/ledger/migrations"
FUNCTION: Final = "function "
PART: Final = r"(?:--[^\n]*|'[^']*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|[^;$'])*;"
"""The rest of a statement: comments, quoted text and everything else up to a semicolon."""


class Safeguard(NamedTuple):
    """A piece of code that keeps a promise.

    `file` is one of

    - a path in this repository;
    - `function gateway.settle`: the last definition of that function in the migrations;
    - MIGRATIONS, for tables and indexes: the last migration that has the code.
    """

    name: str
    file: str
    code: str
    without: str
    """What stands in the place of the code when it is removed."""
    test: str
    """The pytest id of the test that fails without the code."""

    @property
    def is_in_schema(self) -> bool:
        return self.file.startswith((MIGRATIONS, FUNCTION))


class Misplaced(Exception):
    """The code of a safeguard is not where its entry says."""


class Cut(NamedTuple):
    """A file without the safeguard."""

    file: Path
    text: str


def cut(safeguard: Safeguard, root: Path = ROOT) -> Cut:
    """Return the file of the safeguard, relative to `root`, and its text without the code.

    The code stands there once, or twice if two statements share it.
    """
    file, start, end = _find(safeguard, root)
    text = (root / file).read_text(encoding="utf-8")
    end = len(text) if end is None else end
    found = text.count(safeguard.code, start, end)
    if found not in {1, 2}:
        raise Misplaced(
            f"{safeguard.name!r}: its code is {found} times in {safeguard.file} ({file}),"
            " expected once or twice; correct the entry in tests/safeguards.py"
        )
    without = text[start:end].replace(safeguard.code, safeguard.without)
    return Cut(file, text[:start] + without + text[end:])


def _find(safeguard: Safeguard, root: Path) -> tuple[Path, int, int | None]:
    """Return the file and the part of its text in which the code has to be."""
    if safeguard.file != MIGRATIONS and not safeguard.file.startswith(FUNCTION):
        return Path(safeguard.file), 0, None
    newest_first = sorted((root / MIGRATIONS).glob("*.sql"), reverse=True)
    for path in newest_first:
        text = path.read_text(encoding="utf-8")
        if safeguard.file == MIGRATIONS and safeguard.code in text:
            return path.relative_to(root), 0, None
        if safeguard.file != MIGRATIONS and (span := _last_definition(safeguard.file, text)):
            return path.relative_to(root), *span
    wanted = "its code" if safeguard.file == MIGRATIONS else f"{safeguard.file}"
    raise Misplaced(f"{safeguard.name!r}: no migration has {wanted}")


def _last_definition(function: str, text: str) -> tuple[int, int] | None:
    start = rf"^create (?:or replace )?{re.escape(function)}\("
    found = list(re.finditer(start + PART, text, re.MULTILINE | re.DOTALL))
    return found[-1].span() if found else None


SAFEGUARDS: Final = (
    Safeguard(
        "records of the spool that stay refused do not hold up those behind them",
        "gateway/receive/spool/file.py",
        "MOST_AGAIN: Final = WINDOW_ROWS // 2\n",
        "MOST_AGAIN: Final = WINDOW_ROWS\n",
        "tests/integration/test_spool.py::"
        "test_many_refused_records_do_not_hold_up_the_records_behind_them",
    ),
    Safeguard(
        "a signal stops the arq command although its Redis client swallows a cancellation",
        "gateway/queue/worker.py",
        "        await end(main)\n",
        "        main.cancel()\n",
        "tests/integration/test_queue.py::"
        "test_a_signal_that_the_redis_client_would_swallow_stops_the_arq_command",
    ),
    Safeguard(
        "the answer waits for the commit",
        "gateway/ledger/claims.py",
        "        return await waiter.answer\n",
        "        return Claimed(verdict=Verdict.ACCEPTED)\n",
        "tests/e2e/test_http.py::test_what_cannot_be_made_durable_in_time_is_503",
    ),
    Safeguard(
        "a duplicate waits for the standby, too",
        "gateway/ledger/claims.sql",
        "then pg_logical_emit_message(true, 'gateway', '') end as lsn",
        "then '0/0'::pg_lsn end as lsn",
        "tests/integration/test_claims.py::"
        "test_a_duplicate_is_answered_when_a_standby_has_what_it_repeats",
    ),
    Safeguard(
        "a server that is silent does not keep from the other one",
        "gateway/ledger/servers.py",
        "    if len(urls) == 1:\n",
        "    if urls:\n",
        "tests/integration/test_hosts.py::"
        "test_a_first_host_that_is_silent_does_not_keep_from_the_second",
    ),
    Safeguard(
        "claims go in the order of their keys",
        "gateway/ledger/claims.sql",
        "    from input\n    order by route, event_id\n",
        "    from input\n",
        "tests/integration/test_state_machine.py::"
        "test_crossed_batches_wait_for_each_other_and_never_deadlock",
    ),
    Safeguard(
        "the same bytes under a fresh id are guarded against",
        "gateway/ledger/claims.py",
        "    return (claim.guard or claim.digest).hex()\n",
        "    return None\n",
        "tests/integration/test_claims.py::test_the_same_bytes_under_a_fresh_id_are_refused",
    ),
    Safeguard(
        "an idempotency key is of the event, and the same in a restored ledger",
        "gateway/worker/context.py",
        "of_delivery = lease.event.route, lease.event.id, lease.handler",
        "of_delivery = lease.event.route, str(lease.delivery_id), lease.handler",
        "tests/e2e/test_backup.py::test_a_dump_under_load_is_a_ledger_that_goes_on",
    ),
    Safeguard(
        "the ledger is read, whatever the queue says",
        "gateway/worker/intake.py",
        "        leases = await self._lease_due(room, self._handlers)\n",
        "        leases: list[Lease] = []\n",
        "tests/e2e/test_processes.py::test_flushall_loses_nothing",
    ),
    Safeguard(
        "small bodies are leased past large ones that do not fit",
        "gateway/ledger/deliveries.sql",
        "        where $5::bigint <= 0 and not $7::boolean and id = any",
        "        where false and id = any",
        "tests/integration/test_leased_bytes.py::"
        "test_large_bodies_without_room_do_not_hold_up_small_ones[unlimited]",
    ),
    Safeguard(
        "small bodies of a limited handler are leased past large ones that do not fit",
        "function gateway.lease_limited",
        "            where large_room <= 0 and not suspects and id = any",
        "            where false and id = any",
        "tests/integration/test_leased_bytes.py::"
        "test_large_bodies_without_room_do_not_hold_up_small_ones[limited]",
    ),
    Safeguard(
        "the fence: a settlement needs the token of its lease",
        "function gateway.end_run",
        "    where d.id = delivery_id and d.lease_token = token"
        "  -- only a running delivery has a token\n",
        "    where d.id = delivery_id\n",
        "tests/integration/test_state_machine.py::"
        "test_a_worker_that_comes_back_from_the_dead_leaves_no_trace",
    ),
    Safeguard(
        "a conflict with another transaction is no loss of the delivery",
        "function gateway.end_run",
        "result = 'lost' and max_losses is not null then d.losses + 1",
        "result = 'lost' then d.losses + 1",
        "tests/integration/test_run.py::test_conflicts_do_not_count_as_losses",
    ),
    Safeguard(
        "tokens are random: a lease that a crash of Postgres forgot is no other's",
        "gateway/ledger/deliveries.sql",
        "    set status = 'running', runs = d.runs + 1, lease_token = gen_random_uuid(),\n",
        "    set status = 'running', runs = d.runs + 1,"
        " lease_token = md5(d.id || ' ' || d.runs)::uuid,\n",
        "tests/integration/test_state_machine.py::"
        "test_two_holders_of_one_lease_after_a_postgres_crash_leave_one_effect",
    ),
    Safeguard(
        "effect and completion are a single transaction",
        "gateway/ledger/sessions.py",
        "        await self.connection.execute(query)\n        if self.is_foreign:\n",
        '        await self.connection.execute(f"commit; {last}")\n        if self.is_foreign:\n',
        "tests/integration/test_run.py::test_a_handlers_write_and_its_completion_are_one_commit",
    ),
    Safeguard(
        "SQL that would end a handler's transaction is not sent",
        "gateway/worker/transaction.py",
        '        check_statement(query, standard_strings=strings == "on")\n',
        "",
        "tests/integration/test_own_transaction.py"
        "::test_a_statement_that_ends_the_transaction_is_refused[commit-raises]",
    ),
    Safeguard(
        "SQL is read with the string constants that the session has",
        "gateway/worker/transaction.py",
        'check_statement(query, standard_strings=strings == "on")',
        "check_statement(query)",
        "tests/integration/test_own_transaction.py"
        "::test_a_commit_behind_an_escaped_quote_is_refused_as_the_session_reads_it",
    ),
    Safeguard(
        "a string constant that continues on the next line keeps its escapes",
        "gateway/worker/statements.py",
        "[eE]{ESCAPED}{CONTINUED}",
        "[eE]{ESCAPED}",
        "tests/integration/test_statements_in_postgres.py"
        "::test_a_text_is_refused_if_and_only_if_postgres_would_end_the_transaction",
    ),
    Safeguard(
        "a run is settled only in the transaction that began with its lease",
        "function gateway.settle_done",
        "    if coalesce(proof, '') = '' or current_setting('gateway.transaction', true)"
        " is distinct from proof then\n",
        "    if false then\n",
        "tests/integration/test_own_transaction.py"
        "::test_completion_demands_the_transaction_that_began_with_the_lease"
        "[commit and chain-returns]",
    ),
    Safeguard(
        "a handler that committed by itself and then failed is not run again",
        "gateway/worker/execution.py",
        "            await self._transaction.check_transaction()\n",
        "            pass\n",
        "tests/integration/test_own_transaction.py"
        "::test_completion_demands_the_transaction_that_began_with_the_lease[commit-raises]",
    ),
    Safeguard(
        "a statement that a handler prepared is not left to the next delivery",
        "gateway/ledger/connection.py",
        " select gateway.forget_session();",
        "",
        "tests/integration/test_session_state.py"
        "::test_what_a_handler_set_is_undone[direct-prepare-text-commit]",
    ),
    Safeguard(
        "a delivery is settled as the gateway, whichever role its handler took",
        "gateway/ledger/sessions.py",
        'f"{OWN_ROLE}; " if self.is_foreign else ""',
        '""',
        "tests/integration/test_session_state.py"
        "::test_a_handler_that_changes_its_session_completes[set role a_role_of_the_test]",
    ),
    Safeguard(
        "a key is marked as done by the gateway, whichever role its handler took",
        "gateway/worker/execution.py",
        "                    await self._transaction.take_own_role()\n",
        "                    pass\n",
        "tests/integration/test_session_state.py"
        "::test_a_handler_that_acts_once_per_key_may_take_a_role",
    ),
    Safeguard(
        "a prepared statement that went stale burns no attempt of the next delivery",
        "gateway/worker/policy.py",
        "    asyncpg.InvalidCachedStatementError,\n",
        "",
        "tests/integration/test_session_state.py"
        "::test_a_statement_whose_columns_have_changed_burns_no_attempt",
    ),
    Safeguard(
        "a missing statement of the driver burns no attempt of the next delivery",
        "gateway/worker/policy.py",
        "is_because(error, RUN_AGAIN) or _is_of_session(error)\n",
        "is_because(error, RUN_AGAIN)\n",
        "tests/integration/test_session_state.py"
        "::test_a_session_whose_prepared_statements_were_dropped_is_not_used_again",
    ),
    Safeguard(
        "deliveries that lose against others ten times in a row are retried by policy",
        "gateway/worker/policy.py",
        " and tries < AFTER_CONFLICT.attempts:",
        ":",
        "tests/integration/test_run.py::test_the_tenth_conflict_in_a_row_burns_an_attempt",
    ),
    Safeguard(
        "no statement of a handler waits for the data of a COPY, which never comes",
        "gateway/worker/statements.py",
        "        if WANTS_DATA.match(statement):\n",
        "        if False:\n",
        "tests/unit/test_statements.py"
        "::test_a_copy_that_waits_for_data_is_refused[copy t from stdin]",
    ),
    Safeguard(
        "errors that are causes of each other do not stop a worker",
        "gateway/base/errors.py",
        "        if id(found) in seen:\n",
        "        if False:\n",
        "tests/unit/test_causes_of_errors.py"
        "::test_errors_that_are_causes_of_each_other_are_each_yielded_once",
    ),
    Safeguard(
        "a conflict in a task group burns no attempt",
        "gateway/base/errors.py",
        "            waiting += found.exceptions\n",
        "            pass\n",
        "tests/integration/test_run.py::test_a_conflict_in_a_task_group_burns_no_attempt",
    ),
    Safeguard(
        "a session whose prepared statements are gone is not used again",
        "gateway/worker/execution.py",
        "        if is_because(error, MIXED_UP):\n",
        "        if False:\n",
        "tests/integration/test_session_state.py"
        "::test_a_session_whose_prepared_statements_were_dropped_is_not_used_again",
    ),
    Safeguard(
        "the sweep takes back leases that ran out",
        "gateway/worker/sweeper.py",
        "        reaped = await reap(self._ledger, REAP_LIMIT, self._lease)\n",
        "        reaped: list[asyncpg.Record] = []\n",
        "tests/e2e/test_failpoints.py::test_a_worker_dies[handler.starting]",
    ),
    Safeguard(
        "a sweep renews its own leases before it takes back those of others",
        "gateway/worker/sweeper.py",
        "        await self._renew()",
        "        pass",
        "tests/integration/test_run.py::"
        "test_a_sweep_renews_what_runs_here_before_it_takes_back_what_expired",
    ),
    Safeguard(
        "the heartbeat: a long handler keeps its lease",
        "gateway/worker/runner.py",
        "        held = await renew(self._leases, leases, self._lease, self._worker_id)\n",
        "        held = {lease.token for lease in leases}\n",
        "tests/integration/test_run.py::test_a_long_handler_keeps_its_lease",
    ),
    Safeguard(
        "a lease that a heartbeat keeps alive is not taken back",
        "gateway/ledger/deliveries.sql",
        "      and lease_token not in"
        " (select unnest(held) from gateway.workers where held_until >= now())\n",
        "",
        "tests/integration/test_run.py::test_a_long_handler_keeps_its_lease",
    ),
    Safeguard(
        "the gateway's own transactions are at READ COMMITTED, whatever the default is",
        "gateway/ledger/connection.py",
        '        return {**self._settings, "default_transaction_isolation": self._isolation}\n',
        "        return self._settings\n",
        "tests/integration/test_isolation.py"
        "::test_the_gateways_own_transactions_are_at_read_committed[direct-serializable]",
    ),
    Safeguard(
        "the next delivery of an ordering key is advanced after the commit",
        "gateway/worker/execution.py",
        "            turns.append("
        "OrderingKey(lease.event.route, lease.handler, lease.order_key))\n",
        "            pass\n",
        "tests/integration/test_isolation.py"
        "::test_a_successor_that_arrives_during_a_strict_run_starts_without_the_sweep"
        "[serializable]",
    ),
    Safeguard(
        "the server ends the open transaction of a stopped worker",
        "gateway/ledger/sessions.py",
        '            query = f"begin; set idle_in_transaction_session_timeout = {limit_ms}"\n',
        '            query = "begin"\n',
        "tests/integration/test_state_machine.py::"
        "test_a_zombies_open_transaction_does_not_block_its_successor_for_ever",
    ),
    Safeguard(
        "retention spares unfinished work",
        "gateway/ledger/retention.sql",
        "    where unfinished is not true\n",
        "",
        "tests/integration/test_state_machine.py::test_retention_never_deletes_acknowledged_work",
    ),
    Safeguard(
        "a replay holds its event against a prune",
        "function gateway.hold_payload",
        "    for no key update;\n    if not found",
        "    ;\n    if not found",
        "tests/integration/test_retention.py::"
        "test_a_replay_that_comes_first_saves_its_event_from_a_prune_that_waits",
    ),
    Safeguard(
        "what is not finished keeps its payload when its day has come",
        "gateway/ledger/partitions.py",
        '    refiled = await _refile(connection, "find_wanted_payloads", "refile_payloads",'
        " all_of_it=True)\n",
        "    refiled = 0\n",
        "tests/integration/test_partitions.py::"
        "test_what_is_not_finished_keeps_its_payload_and_its_attempts",
    ),
    Safeguard(
        "an order to run again keeps the payload on its last day",
        "function gateway.hold_payload",
        "    if its_until <= (now() at time zone 'UTC')::date + 1 then\n",
        "    if false then\n",
        "tests/integration/test_partitions.py::test_what_is_replayed_on_its_last_day_runs",
    ),
    Safeguard(
        "a table that somebody reads is not waited for",
        "gateway/ledger/partitions.py",
        "    return bool(before & after)\n",
        "    return False\n",
        "tests/integration/test_partitions.py::"
        "test_an_open_transaction_that_has_read_payloads_is_not_waited_for",
    ),
    Safeguard(
        "a drop waits for nobody",
        "function gateway.detach_partition",
        "set lock_timeout = '200ms'\nas $$\ndeclare\n    found_name",
        "as $$\ndeclare\n    found_name",
        "tests/integration/test_partitions.py::test_a_drop_waits_for_nobody",
    ),
    Safeguard(
        "a day that has not come is not dropped",
        "function gateway.detach_partition",
        "      and day <= (now() at time zone 'UTC')::date;\n",
        "      ;\n",
        "tests/integration/test_partitions.py::test_a_day_that_has_not_come_is_not_dropped",
    ),
    Safeguard(
        "a claim finds a table on a day for which nobody made one",
        MIGRATIONS,
        "partition of gateway.payloads default with (toast_tuple_target = 8160);",
        "(like gateway.payloads);",
        "tests/integration/test_partitions.py::"
        "test_a_claim_never_fails_for_want_of_a_table_and_is_put_in_order_later",
    ),
    Safeguard(
        "a bulk operation leaves alone what died after it began",
        "gateway/ledger/bulk.sql",
        " and finished_at <= $2",
        " and $2::timestamptz is not null",
        "tests/integration/test_bulk.py::test_a_second_death_that_comes_in_between_is_left_alone",
    ),
    Safeguard(
        "a bulk operation that has moved a delivery does not move it again",
        "gateway/ledger/bulk.sql",
        "where a.delivery_id = w.id and a.order_id = $8",
        "where a.delivery_id = -w.id and a.order_id = $8",
        "tests/integration/test_bulk.py::"
        "test_what_dies_again_is_not_replayed_twice_by_the_same_operation",
    ),
    Safeguard(
        "a bulk operation that was resumed elsewhere makes no more steps here",
        "gateway/ledger/bulk.py",
        'bulk["resumed"] != resumed or ',
        "",
        "tests/integration/test_bulk.py::"
        "test_a_bulk_operation_that_was_resumed_elsewhere_runs_there_only",
    ),
    Safeguard(
        "a step of a long operation is repeated after lock contention",
        "gateway/ledger/walk.py",
        "        with suppress(*contended):\n",
        "        if cursor is not None:\n",
        "tests/unit/test_walk.py::test_a_step_that_meets_lock_contention_is_repeated",
    ),
    Safeguard(
        "a piece of a long operation ends in time",
        "gateway/ledger/walk.py",
        "            if time.monotonic() > ends_s:\n",
        "            if False:\n",
        "tests/unit/test_walk.py::"
        "test_a_piece_ends_at_its_time_limit_and_the_next_one_begins_there",
    ),
    Safeguard(
        "what a step of a bulk operation moves and its cursor are one transaction",
        "gateway/ledger/bulk.py",
        "    async with connection.transaction():\n",
        "    if connection:\n",
        "tests/e2e/test_bulk.py::test_a_bulk_operation_dies_between_its_steps[bulk.marked]",
    ),
    Safeguard(
        "what is delivered to a new handler holds its event against a prune",
        "gateway/ledger/bulk.sql",
        "    where gateway.hold_payload(i.route, i.event_id)\n",
        "    where gateway.next_partition(i.route, current_date) is not null\n",
        "tests/integration/test_bulk.py::"
        "test_a_prune_that_comes_first_takes_its_event_from_a_delivery",
    ),
    Safeguard(
        "reconcile looks no further back than keys are kept",
        "gateway/operations/reconcile/run.py",
        "    floor = max(bounds.kept_since, bounds.known_since)\n",
        "    floor = bounds.kept_since\n",
        "tests/integration/test_reconcile.py::test_a_forgotten_key_does_not_come_again",
    ),
    Safeguard(
        "a gap that may have come and been forgotten is given up",
        "gateway/ledger/reconciliations.sql",
        "  and (handled_at < $4 or occurred_at < $5 or asks >= $2",
        "  and (handled_at < $4 or $5::timestamptz is null or asks >= $2",
        "tests/integration/test_reconcile.py::"
        "test_a_gap_that_may_have_come_and_been_forgotten_is_not_asked_for_again",
    ),
    Safeguard(
        "a redelivery is asked for only where the first delivery is known",
        "gateway/ledger/reconciliations.sql",
        "where run_id = $1 and status in ('missing', 'asked') and is_first\n",
        "where run_id = $1 and status in ('missing', 'asked')\n",
        "tests/integration/test_reconcile.py::"
        "test_a_guid_of_which_only_redeliveries_are_listed_is_not_asked_for",
    ),
    Safeguard(
        "a redelivery is not asked for while one is under way",
        "gateway/ledger/reconciliations.sql",
        "and coalesce(asked_at, '-infinity') < now() - $2::interval\n",
        "and $2::interval is not null\n",
        "tests/integration/test_reconcile.py::"
        "test_a_redelivery_that_is_under_way_is_not_asked_for_again",
    ),
    Safeguard(
        "what was refused as a replay has been seen",
        "gateway/ledger/reconciliations.sql",
        "    where f.route = $1 and f.event_id = i.event_id and coalesce(",
        "    where false and f.event_id = i.event_id and coalesce(",
        "tests/integration/test_reconcile.py::"
        "test_a_guid_that_was_refused_as_repeated_counts_as_seen",
    ),
    Safeguard(
        "one captured request notes only so many refusals",
        "gateway/ledger/rejected.sql",
        "where known.kept + f.n <= $4\n",
        "",
        "tests/integration/test_reconcile.py::"
        "test_of_one_captured_body_only_so_many_refusals_are_kept",
    ),
    Safeguard(
        "one reconciliation of a route at a time",
        "gateway/ledger/reconciliations.sql",
        "select pg_try_advisory_xact_lock(hashtextextended('reconcile ' || $1, 20261117))",
        "select $1::text is not null",
        "tests/integration/test_reconcile.py::"
        "test_one_run_at_a_time_and_a_dead_one_is_gone_on_with",
    ),
    Safeguard(
        "a pooler is found out by the process id that it makes up",
        "gateway/ledger/servers.py",
        'return await connection.execute(query, timeout=timeout_s) == "SELECT 1"',
        'return await connection.execute(query, timeout=timeout_s) != ""',
        "tests/integration/test_pgbouncer.py::"
        "test_a_pooler_that_swallows_settings_is_found_out_too",
    ),
    Safeguard(
        "a session of a pooler is told for a transaction only",
        "gateway/ledger/servers.py",
        'f"set local {name} = {_literal(name, value)}"',
        'f"set {name} = {_literal(name, value)}"',
        "tests/integration/test_pgbouncer.py::"
        "test_every_statement_is_told_the_settings_and_leaves_none",
    ),
    Safeguard(
        "statements are kept only where the pooler names them itself",
        "gateway/ledger/servers.py",
        "    return not is_ours",
        "    return True",
        "tests/integration/test_pgbouncer.py::test_statements_are_kept_where_the_pooler_knows_them",
    ),
    Safeguard(
        "the migration's lock, which holds through a pooler",
        "gateway/ledger/migrate.py",
        '"select pg_advisory_xact_lock($1)", LOCK, timeout=WORK_S',
        '"select $1::bigint", LOCK, timeout=WORK_S',
        "tests/integration/test_pgbouncer.py::"
        "test_ten_that_migrate_at_once_apply_each_migration_once",
    ),
    Safeguard(
        "what a schema file set is not left to the next client of a pooler",
        "gateway/ledger/migrate.py",
        "        await connection.execute(forget_query(connection))\n",
        "",
        "tests/integration/test_pgbouncer.py::"
        "test_ten_that_migrate_at_once_apply_each_migration_once",
    ),
    Safeguard(
        "a server that takes no writes is one that is away",
        "gateway/ledger/connection.py",
        "    *READ_ONLY,\n",
        "",
        "tests/integration/test_claims.py::"
        "test_a_database_that_was_read_only_for_a_while_is_written_again",
    ),
    Safeguard(
        "a handler whose server takes no writes any more burns no attempt",
        "gateway/worker/execution.py",
        "            self._transaction.give_up()\n            return True\n",
        "            return False\n",
        "tests/integration/test_run.py::"
        "test_a_server_that_takes_no_writes_any_more_burns_no_attempt",
    ),
    Safeguard(
        "handlers share as few connections as they are told to",
        "gateway/ledger/sessions.py",
        "self._room = asyncio.Semaphore(most)",
        "self._room = asyncio.Semaphore(MOST)",
        "tests/integration/test_budget.py::"
        "test_handlers_share_as_few_connections_as_they_are_told_to",
    ),
    Safeguard(
        "a certificate of Redis is one of that very host",
        "gateway/queue/connection.py",
        '{"ssl_check_hostname": place.options.get("ssl_cert_reqs") != "none"}',
        '{"ssl_check_hostname": False}',
        "tests/integration/test_tls.py::test_redis_without_the_right_proof_is_refused",
    ),
    Safeguard(
        "the way to the Sentinels is encrypted, too",
        "gateway/queue/connection.py",
        '"ssl": place.is_encrypted}',
        '"ssl": False}',
        "tests/integration/test_tls.py::test_redis_that_proves_who_it_is_is_talked_to",
    ),
    Safeguard(
        "the commit of a lease says what it is",
        "gateway/ledger/servers.py",
        'f"{_first_line(query)}commit"',
        '"commit"',
        "tests/integration/test_pgbouncer.py::test_a_commit_says_of_what_it_is",
    ),
    Safeguard(
        "the fsync of the spool's file",
        "gateway/receive/spool/file.py",
        '            reached("spool.written")\n            os.fsync(self._descriptor)\n',
        "",
        "tests/integration/test_spool.py::"
        "test_what_was_acknowledged_survives_a_power_cut_at_any_moment",
    ),
    Safeguard(
        "the fsync of the spool's directory",
        "gateway/receive/spool/file.py",
        "            sync_directory(directory)\n            return cls(path, descriptor)\n",
        "            return cls(path, descriptor)\n",
        "tests/integration/test_spool.py::"
        "test_what_was_acknowledged_survives_a_power_cut_at_any_moment",
    ),
    Safeguard(
        "records of the spool that were refused are read a few bytes at a time",
        "gateway/receive/spool/file.py",
        "            if size > WINDOW_BYTES:\n                return self.left[:count]\n",
        "",
        "tests/integration/test_spool.py::test_refused_records_are_read_a_few_bytes_at_a_time",
    ),
    Safeguard(
        "of the records that stay refused, each is offered in its turn",
        "gateway/receive/spool/spool.py",
        "        file.left += left  # behind",
        "        file.left = [*left, *file.left]  # behind",
        "tests/integration/test_spool.py::test_refused_records_are_read_a_few_bytes_at_a_time",
    ),
    Safeguard(
        "the checksum of a spooled record",
        "gateway/receive/spool/file.py",
        "    if _checksum(lengths, facts, body) != head[-CHECKSUM_BYTES:]:\n        return None\n",
        "",
        "tests/unit/test_spool_records.py::"
        "test_any_byte_that_changed_is_noticed_and_the_neighbours_are_kept",
    ),
    Safeguard(
        "the lock on a spool file",
        "gateway/receive/spool/file.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "            if os.fstat(descriptor).st_nlink == 0:",
        "            if os.fstat(descriptor).st_nlink == 0:",
        "tests/integration/test_spool.py::test_a_living_owner_keeps_its_file",
    ),
    Safeguard(
        "a spool file that is being written is not removed",
        "gateway/receive/spool/spool.py",
        "            if not file.is_finished or file is self._appending:\n",
        "            if not file.is_finished:\n",
        "tests/integration/test_spool.py::test_writing_and_draining_at_once_loses_nothing",
    ),
    Safeguard(
        "the type of the stored event decides whether a repeated body is refused",
        "gateway/ledger/claims.py",
        "claim.refuses(first_type):",
        "claim.refuses(claim.envelope.type):",
        "tests/integration/test_claims.py::test_todays_rule_for_the_stored_type_decides",
    ),
    Safeguard(
        "a body of GitHub's under another event header is refused",
        "gateway/providers/provider.py",
        "if type not in (None, first_type) and self.repeats.has_one_type:",
        "if False:",
        "tests/e2e/test_repeats.py::test_a_captured_body_under_another_event_header_is_refused",
    ),
    Safeguard(
        "an identical body of a sender without ids is a duplicate inside its window",
        "gateway/ledger/claims.py",
        "    if claim.window is not None:\n        return claim.digest.hex()\n",
        "",
        "tests/integration/test_claims.py::test_of_identical_bodies_one_begins_a_dedup_window",
    ),
    Safeguard(
        "an identical body of a sender without ids is an event after its window",
        "gateway/ledger/claims.py",
        ' or claim.received_at - row["first_received_at"] >= claim.window:',
        ":",
        "tests/integration/test_claims.py::test_of_identical_bodies_one_begins_a_dedup_window",
    ),
    Safeguard(
        "an identical body inside the window is kept for people",
        "gateway/receive/webhooks.py",
        "        if self._provider.keyed_by_digest:\n",
        "        if False:\n",
        "tests/e2e/test_repeats.py::"
        "test_an_identical_body_is_a_duplicate_in_its_window_and_an_event_after_it",
    ),
    Safeguard(
        "a duplicate is kept before it is acknowledged",
        "gateway/receive/webhooks.py",
        'await self._keep_durably(keep, repeated, otherwise="duplicates_not_kept")',
        "any(map(self._rejected.keep, repeated))",
        "tests/e2e/test_repeats.py::test_a_duplicate_is_not_acknowledged_before_it_is_kept",
    ),
    Safeguard(
        "identical duplicates are counted in their row",
        "gateway/ledger/rejected.sql",
        "copies = kept.copies + excluded.copies",
        "copies = kept.copies",
        "tests/e2e/test_repeats.py::"
        "test_identical_bodies_that_come_at_once_are_one_row_with_their_number",
    ),
    Safeguard(
        "a duplicate is kept with the secret under which it was verified",
        "gateway/receive/webhooks.py",
        "repeated.append(kept._replace(verified_by=claim.verified_by))",
        "repeated.append(kept)",
        "tests/e2e/test_repeats.py::test_a_duplicate_of_a_token_sender_can_be_released",
    ),
    Safeguard(
        "duplicates that give way to others are counted",
        "gateway/ledger/rejected.sql",
        "from trimmed where code = 'DUPLICATE'",
        "from trimmed where false and code = 'DUPLICATE'",
        "tests/integration/test_rejected.py::test_duplicates_that_give_way_to_others_are_counted",
    ),
    Safeguard(
        "an item or a duplicate that is not sent again waits for Postgres",
        "gateway/receive/rejected/writer.py",
        "self._later.append(request)",
        "self.keep(request)",
        "tests/e2e/test_batches.py::"
        "test_an_item_of_a_sender_that_never_retries_waits_until_it_is_written",
    ),
    Safeguard(
        "an identical body that was acknowledged from the spool is kept for people",
        "gateway/receive/spool/spool.py",
        "await self.on_duplicate(claim, first)",
        "pass",
        "tests/e2e/test_spool.py::"
        "test_a_body_that_was_spooled_twice_is_one_event_and_one_to_release",
    ),
    Safeguard(
        "bodies that can honestly repeat are not refused",
        "gateway/providers/provider.py",
        "return type not in self.unique",
        "return False",
        "tests/e2e/test_repeats.py::test_every_example_of_octokit_is_sent_twice",
    ),
    Safeguard(
        "a release keeps an identical body of a sender without ids",
        "gateway/operations/release.py",
        "        if duplicates and bounds.rows:",
        "        if False:",
        "tests/e2e/test_repeats.py::test_a_release_keeps_an_identical_body_as_a_duplicate",
    ),
    Safeguard(
        "repeated bodies are released only by id or by their code",
        "gateway/ledger/rejected.sql",
        "coalesce(code = $2, code not in ('REPEATED_BODY', 'DUPLICATE'))",
        "coalesce(code = $2, true)",
        "tests/integration/test_rejected.py::"
        "test_all_repeats_of_a_route_are_released_by_their_code",
    ),
    Safeguard(
        "a refused repeat does not count as seen once its type is flagged",
        "gateway/ledger/reconciliations.sql",
        "f.event_id = i.event_id and coalesce(first.type = any ($3::text[]), true)",
        "f.event_id = i.event_id and coalesce(true or first.type = any ($3::text[]), true)",
        "tests/integration/test_reconcile.py::"
        "test_a_refused_guid_is_asked_for_once_its_type_is_flagged",
    ),
    Safeguard(
        "what was acknowledged from the spool is flagged and not refused",
        "gateway/ledger/claims.py",
        " and claim.refuses is not None and claim.refuses(first_type)",
        " and (claim.refuses is None or claim.refuses(first_type))",
        "tests/integration/test_spool.py::"
        "test_at_drain_a_refusal_of_the_replay_policy_becomes_a_flag",
    ),
    Safeguard(
        "the lock under which a turn is given",
        "function gateway.advance",
        "    perform pg_advisory_xact_lock(gateway.turn_lock(of_route, of_handler, of_key));\n",
        "",
        "tests/integration/test_flow_faults.py::"
        "test_the_end_of_one_and_the_arrival_of_the_next_do_not_miss_each_other",
    ),
    Safeguard(
        "of one key one at a time: an index refuses a second turn",
        MIGRATIONS,
        "create unique index deliveries_turn",
        "create index deliveries_turn",
        "tests/integration/test_order.py::test_the_index_refuses_a_second_turn",
    ),
    Safeguard(
        "the sweep gives turns that nobody gave",
        "gateway/worker/sweeper.py",
        "        await self._give_turns()\n",
        "",
        "tests/integration/test_order.py::test_a_turn_that_nobody_gave_is_given_by_the_sweep",
    ),
    Safeguard(
        "concurrency: an index refuses a slot that is taken",
        MIGRATIONS,
        "create unique index deliveries_slot",
        "create index deliveries_slot",
        "tests/integration/test_limits.py::test_the_index_refuses_a_slot_that_is_taken",
    ),
    Safeguard(
        "rate: a start needs a place",
        "function gateway.lease_limited",
        "          and (period is null or places.place is not null)\n",
        "",
        "tests/integration/test_limits.py::"
        "test_no_more_start_in_a_period_than_the_rate_over_all_workers",
    ),
    Safeguard(
        "a call is on record before it is made",
        "gateway/worker/effects.py",
        "                result = await self._call(of, effect, call, not_done)\n",
        "                await release_effect(self._ledger, self._lease, of, effect)\n"
        "                result = await self._call(of, effect, call, not_done)\n"
        "                await begin_effect(\n"
        "                    self._ledger, self._lease, of.name, again=True, "
        "encryption=self._encryption\n"
        "                )\n",
        "tests/integration/test_once.py::test_skip_never_calls_a_second_time_through_a_time_out",
    ),
    Safeguard(
        "an answer proves that a call was not done only if it was its only request",
        "gateway/worker/effects.py",
        "        proven = made.count == 1 and _is_refused(error)\n",
        "        proven = _is_refused(error)\n",
        "tests/unit/test_outcome.py::test_of_two_requests_the_second_one_proves_nothing",
    ),
    Safeguard(
        "a failed connection proves that a call was not done only if nothing else was sent",
        "gateway/worker/effects.py",
        "        proven = made.count == 0\n",
        "        proven = True\n",
        "tests/unit/test_outcome.py::test_a_redirect_was_a_request",
    ),
    Safeguard(
        "each request that a client sends by itself, as a retry or a redirect, is counted",
        "gateway/worker/effects.py",
        "    for layer in (_CLIENTS, _WIRE):\n",
        "    for layer in (_CLIENTS,):\n",
        "tests/integration/test_outcome.py::"
        "test_a_refused_connection_after_a_request_that_was_sent_proves_nothing",
    ),
    Safeguard(
        "a refusal does not undo an earlier call that ended unknown",
        "gateway/ledger/effects.sql",
        " and status = 'begun' and unknown_at is null and calls = 1\n",
        " and status = 'begun'\n",
        "tests/integration/test_effects.py::"
        "test_a_refusal_after_a_call_that_ended_unknown_proves_nothing",
    ),
    Safeguard(
        "an effect that a run goes on without is listed",
        "gateway/ledger/effects.sql",
        " e set status = 'unknown', unknown_at = now()\n",
        " e set error = e.error\n",
        "tests/integration/test_effects.py::test_receipts_survive_an_outage_of_the_mail_api",
    ),
    Safeguard(
        "an effect whose error the handler caught is listed",
        "gateway/worker/execution.py",
        "            await mark_effects(self._context)\n",
        "            pass\n",
        "tests/integration/test_once.py::"
        "test_a_run_that_catches_the_error_and_completes_leaves_the_effect_unknown",
    ),
    Safeguard(
        "the end of a run needs no second connection while it holds its own",
        "gateway/worker/context.py",
        "    return context._lease.run > 1 and is_without_calls and context._transaction.used\n",
        "    return False\n",
        "tests/integration/test_pgbouncer.py::test_second_runs_may_hold_every_server_of_a_pooler",
    ),
    Safeguard(
        "a 500 is no proof that a call was not done",
        "gateway/worker/effects.py",
        "    return _status(error) in NOT_DONE_STATUSES\n",
        "    return _status(error) is not None\n",
        "tests/unit/test_outcome.py::test_every_error_status_has_one_outcome",
    ),
    Safeguard(
        "a call that was refused is made again by the next run",
        "gateway/worker/effects.py",
        "        is_released = await release_effect(self._ledger, self._lease, of, begun)\n",
        "        is_released = False\n",
        "tests/integration/test_effects.py::"
        "test_a_request_that_was_refused_is_retried_and_after_that_a_dead_letter",
    ),
    Safeguard(
        "bulk operations include effects of a time before the clock was set back",
        "gateway/worker/sweeper.sql",
        "set unknown_at = now() where status = 'unknown' and unknown_at > now()\n",
        "set calls = calls where false\n",
        "tests/integration/test_effects.py::"
        "test_bulk_operations_include_those_of_a_time_before_the_clock_was_set_back",
    ),
    Safeguard(
        "a refusal that the handler caught does not hide an earlier call",
        "gateway/worker/effects.py",
        "        if is_released and not begun.is_requested:\n"
        "            self._open.discard(of.name)\n",
        "        self._open.discard(of.name)\n",
        "tests/integration/test_once.py::"
        "test_a_caught_refusal_does_not_hide_an_earlier_call_of_unknown_outcome",
    ),
    Safeguard(
        "an effect of an earlier run is listed if the last run does not ask for it",
        "gateway/worker/context.py",
        "    elif lease.run > 1 or not (effects is None or effects.is_settled):\n",
        "    elif not (effects is None or effects.is_settled):\n",
        "tests/integration/test_once.py::"
        "test_an_effect_that_a_later_run_does_not_ask_for_is_listed_as_unknown[]",
    ),
    Safeguard(
        "an effect of an earlier run is listed in the transaction of the last run",
        "gateway/worker/execution.py",
        "                    await mark_effects(self._context)\n",
        "                    pass\n",
        "tests/integration/test_once.py::"
        "test_an_effect_that_a_later_run_does_not_ask_for_is_listed_as_unknown[select 1]",
    ),
    Safeguard(
        "an effect of a delivery that was skipped is listed",
        "gateway/worker/execution.py",
        "            return await self._mark_effects() or error\n",
        "            return error\n",
        "tests/integration/test_order.py::"
        "test_a_skipped_delivery_lists_the_effect_that_it_leaves_unknown",
    ),
    Safeguard(
        "a retry of effects is for those of unknown outcome only",
        "gateway/ledger/effects.sql",
        "    where e.delivery_id = k.delivery_id and e.name = k.name and e.status = 'unknown'\n",
        "    where e.delivery_id = k.delivery_id\n",
        "tests/integration/test_effects.py::test_a_retry_makes_only_the_unknown_effect_again",
    ),
    Safeguard(
        "a retry that was requested is made also by a handler that skips",
        "gateway/ledger/effects.sql",
        "where ($4 or e.status = 'begun' and e.unknown_at is not null) and",
        "where $4 and",
        "tests/integration/test_effects.py::test_receipts_survive_an_outage_of_the_mail_api",
    ),
    Safeguard(
        "a retry that no run has made is listed again",
        "gateway/ledger/effects.sql",
        "), requested as (\n    update gateway.effects e set status = 'begun'\n    from kept k\n",
        "), requested as (\n    delete from gateway.effects e\n    using kept k\n",
        "tests/integration/test_effects.py::"
        "test_a_retry_for_which_the_handler_does_not_ask_any_more_is_listed_again",
    ),
    Safeguard(
        "a retry that was refused does not forget the call before it",
        "gateway/ledger/effects.sql",
        "    set calls = calls - 1, error = $9, unknown_at = now()\n    where $8 and",
        "    set calls = calls - 1, error = $9, unknown_at = now()\n    where false and",
        "tests/integration/test_effects.py::"
        "test_an_ordered_call_that_is_refused_is_made_again_by_the_next_run",
    ),
    Safeguard(
        "a retry whose delivery is discarded is listed again",
        "gateway/ledger/deliveries.sql",
        "d.id and e.status = 'begun' and e.made_by is null\n",
        "d.id and false\n",
        "tests/integration/test_effects.py::"
        "test_a_retry_whose_delivery_is_discarded_is_listed_again",
    ),
    Safeguard(
        "a confirmed effect of a dead letter is not made by its replay",
        "gateway/ledger/effects.sql",
        "where d.id = e.delivery_id) = 'dead'))",
        "where d.id = e.delivery_id) = ''))",
        "tests/integration/test_effects.py::"
        "test_a_confirmed_effect_of_a_dead_letter_is_not_made_by_its_replay",
    ),
    Safeguard(
        "a call that may have been done is listed when its delivery is discarded",
        "gateway/ledger/deliveries.sql",
        "d.id and e.status = 'begun' and e.made_by is null\n",
        "d.id and e.status = 'begun' and e.unknown_at is not null\n",
        "tests/integration/test_effects.py::"
        "test_a_dead_letter_that_is_given_up_leaves_its_unknown_effect_on_the_list",
    ),
    Safeguard(
        "a call that may have been done is listed when dead letters are discarded",
        "gateway/ledger/bulk.sql",
        "d.id and e.status = 'begun' and e.made_by is null\n",
        "d.id and e.status = 'begun' and e.unknown_at is not null\n",
        "tests/integration/test_effects.py::"
        "test_a_dead_letter_that_is_given_up_leaves_its_unknown_effect_on_the_list",
    ),
    Safeguard(
        "a call that may have been done is listed when retention discards its dead letter",
        "gateway/ledger/retention.sql",
        "d.id and e.status = 'begun' and e.made_by is null\n",
        "d.id and false\n",
        "tests/integration/test_effects.py::"
        "test_a_dead_letter_that_is_given_up_leaves_its_unknown_effect_on_the_list",
    ),
    Safeguard(
        "a refused retry that an event made for another one is listed if its error is caught",
        "gateway/worker/effects.py",
        "        if is_released and not begun.is_requested:\n",
        "        if is_released:\n",
        "tests/integration/test_once_per_thing.py::"
        "test_a_refused_call_that_was_ordered_for_another_event_is_listed_if_its_error_is_caught",
    ),
    Safeguard(
        "a replay never makes an effect again that was done",
        "gateway/ledger/bulk.sql",
        "      and (e.status = 'unknown' or e.status = 'begun' and e.unknown_at is null)\n",
        "",
        "tests/integration/test_effects.py::"
        "test_a_replay_of_dead_letters_keeps_or_retries_effects_of_unknown_outcome",
    ),
    Safeguard(
        "a call needs the token of its lease",
        "gateway/ledger/effects.sql",
        "where id = $1 and lease_token = $2 for share",
        "where id = $1 for share",
        "tests/integration/test_flow_faults.py::test_a_run_without_its_lease_begins_nothing",
    ),
    Safeguard(
        "a key has one call at a time",
        "gateway/ledger/effects.py",
        ' or (holder != mine and row["is_running"] and row["status"] == "begun")',
        "",
        "tests/integration/test_once_per_thing.py::"
        "test_of_two_at_the_same_time_one_calls_and_the_other_waits_for_its_result",
    ),
    Safeguard(
        "a key is reserved under a lease",
        "gateway/ledger/effects.sql",
        "where id = $4 and lease_token = $5 for share",
        "where id = $4 for share",
        "tests/integration/test_once_per_thing.py::test_a_run_without_its_lease_reserves_nothing",
    ),
    Safeguard(
        "a delivery that another one took an effect from cannot finish it",
        "gateway/ledger/effects.sql",
        "made_by = $1, token = $2, error = null",
        "made_by = $1, error = null",
        "tests/integration/test_once_per_thing.py::"
        "test_a_call_that_another_event_took_over_cannot_be_kept_by_the_first",
    ),
    Safeguard(
        "a refusal does not undo an earlier call of another event that ended unknown",
        "gateway/ledger/effects.sql",
        "$8::integer + case when $7 then 1 else 0 end",
        "1",
        "tests/integration/test_once_per_thing.py::"
        "test_a_refusal_after_a_call_of_another_event_that_ended_unknown_proves_nothing",
    ),
    Safeguard(
        "a call that was not done gives its key back",
        "gateway/ledger/effects.sql",
        "      and o.delivery_id = r.delivery_id\n",
        "      and false\n",
        "tests/integration/test_once_per_thing.py::"
        "test_a_call_that_was_refused_leaves_the_key_to_the_other_event",
    ),
    Safeguard(
        "an effect whose delivery is gone is listed for the one that goes on without it",
        "gateway/ledger/effects.py",
        '    if again or row["status"] == "begun":\n',
        "    if again:\n",
        "tests/integration/test_once_per_thing.py::"
        "test_what_an_ended_delivery_may_have_called_is_listed_or_called_again",
    ),
    Safeguard(
        "a key whose effect another one changes is not waited for",
        "gateway/ledger/effects.sql",
        "order by key = $3\nlimit 1\nfor update skip locked;",
        "order by key = $3\nlimit 1;",
        "tests/integration/test_once_per_thing.py::"
        "test_a_key_whose_effect_another_one_changes_is_not_waited_for",
    ),
    Safeguard(
        "what was done for all events of a thing stays done when one is erased",
        "gateway/ledger/effects.sql",
        "key in (gateway.erased($3), $6, gateway.erased($6)))\n    on conflict do nothing",
        "false)\n    on conflict do nothing",
        "tests/integration/test_once_per_thing.py::"
        "test_what_was_done_for_an_erased_event_stays_done_and_nothing_of_it_is_left",
    ),
    Safeguard(
        "an erasure during a reservation does not free the key",
        "gateway/ledger/effects.sql",
        "order by key = $3\nlimit 1",
        "order by key <> $3\nlimit 1",
        "tests/integration/test_once_per_thing.py::"
        "test_an_erasure_in_the_middle_of_a_reservation_does_not_free_the_key",
    ),
    Safeguard(
        "an erasure takes the copies of a result",
        "gateway/ledger/erasure.sql",
        "where made_by = any (array (select id from theirs))",
        "where false",
        "tests/integration/test_once_per_thing.py::"
        "test_what_was_done_for_an_erased_event_stays_done_and_nothing_of_it_is_left",
    ),
    Safeguard(
        "all events of a thing have one idempotency key",
        "gateway/worker/idempotency.py",
        "        key = scope.key\n",
        "        pass\n",
        "tests/integration/test_once_per_thing.py::"
        "test_with_retry_the_next_event_calls_again_under_the_same_idempotency_key",
    ),
    Safeguard(
        "a missing value is no key",
        "gateway/worker/context.py",
        "    if None in values:\n",
        "    if False:\n",
        "tests/integration/test_once_per_thing.py::test_what_is_no_key_is_not_taken_for_none",
    ),
    Safeguard(
        "a redacted value is no key",
        "gateway/worker/context.py",
        "            await self._check_not_redacted(name, per)\n",
        "            pass\n",
        "tests/integration/test_once_per_thing.py::test_a_redacted_value_is_no_key",
    ),
    Safeguard(
        "keys of several values are not the same because their texts are",
        "gateway/config/registry/key_path.py",
        "    return _as_text(list(texts))\n",
        "    return _as_text(''.join(texts))\n",
        "tests/unit/test_flow_options.py::"
        "test_several_values_are_one_key_that_no_other_values_make",
    ),
    Safeguard(
        "all events of a thing have one key per write to Stripe",
        "gateway/worker/stripe_client.py",
        "        writes = self._writes if scope is None else scope.writes\n",
        "        writes = self._writes\n",
        "tests/integration/test_stripe_client.py::"
        "test_in_once_per_thing_writes_are_counted_from_one",
    ),
    Safeguard(
        "a key that was done is kept in the handler's own transaction",
        "gateway/worker/execution.py",
        "self._once_per.keep(self._transaction.run_own)",
        "self._once_per.keep(self._worker.ledger.fetchrow)",
        "tests/integration/test_flow_faults.py::"
        "test_a_key_is_not_done_where_the_commit_of_its_run_failed",
    ),
    Safeguard(
        "a job is published in the handler's own transaction",
        "gateway/worker/context.py",
        'await self._transaction.run_own(QUERIES["publish"]',
        'await self._worker.ledger.fetchrow(QUERIES["publish"]',
        "tests/integration/test_publish.py::test_a_job_is_rolled_back_with_its_handler",
    ),
    Safeguard(
        "nothing is sent to a metadata service, whatever its name meant before",
        "gateway/http/outbound.py",
        "            _refuse(refusal(address), str(address))\n",
        "            pass\n",
        "tests/integration/test_outbound.py::"
        "test_a_name_that_comes_to_mean_a_metadata_service_is_refused",
    ),
    Safeguard(
        "the connection goes to the address that was checked",
        "gateway/http/outbound.py",
        "                addresses = await self._checked(host, port)\n",
        "                await self._checked(host, port)\n"
        "                addresses = await self._resolve(host, port)\n",
        "tests/integration/test_outbound.py::test_it_connects_to_the_very_address_that_was_checked",
    ),
    Safeguard(
        "of two workers that look at once, one decides",
        "gateway/ledger/alerts.sql",
        "select pg_try_advisory_xact_lock($1) as is_mine,",
        "select $1::bigint is not null as is_mine,",
        "tests/integration/test_alerts.py::test_a_worker_does_not_decide_while_another_one_does",
    ),
    Safeguard(
        "an alert that was told is remembered",
        "gateway/operations/alerts/rules.py",
        "    return abs(at - alert.told_at) >= wait\n",
        "    return True\n",
        "tests/integration/test_alerts.py::test_two_workers_at_once_tell_once",
    ),
    Safeguard(
        "a message is with one worker at a time",
        "gateway/ledger/alerts.sql",
        "set attempts = m.attempts + 1, next_at = coalesce($2, now()) + $4::interval\n",
        "set attempts = m.attempts + 1 + extract(epoch from $4::interval)::int * 0\n",
        "tests/integration/test_alerts.py::"
        "test_one_message_is_sent_by_one_worker_even_when_both_would",
    ),
    Safeguard(
        "a secret stops at its expiry",
        "gateway/receive/keyring.py",
        "        if ring.until is None or ring.since <= now < ring.until:\n",
        "        if ring.until is None or ring.since <= now:\n",
        "tests/unit/test_keyring.py::test_a_secret_counts_up_to_its_expiry_and_not_a_moment_longer",
    ),
    Safeguard(
        "a request that was under way brings no old secret back",
        "gateway/receive/keyring.py",
        "        self._bunch = bunch\n",
        "        self._bunch.held = bunch.held\n",
        "tests/unit/test_keyring.py::"
        "test_exchanged_keys_count_at_once_and_one_who_was_reading_cannot_bring_the_old_back",
    ),
    Safeguard(
        "what else was changed in the file is not taken for a rotation",
        "gateway/receive/reloading.py",
        "        if changes:\n",
        "        if changes and not changes:\n",
        "tests/e2e/test_reload_secrets.py::test_a_broken_file_changes_nothing_for_no_route",
    ),
    Safeguard(
        "an order to reload that comes too soon is not forgotten",
        "gateway/base/hangup.py",
        "            self._was_asked = True\n",
        "            self._was_asked = False\n",
        "tests/unit/test_hangup.py::"
        "test_one_that_comes_too_soon_is_obeyed_later_and_one_too_late_ends_nothing",
    ),
    Safeguard(
        "a child does not die of SIGHUP before it listens",
        "gateway/base/hangup.py",
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})\n",
        "",
        "tests/unit/test_hangup.py::test_a_child_does_not_die_of_one_that_comes_before_it_listens",
    ),
    Safeguard(
        "a service cannot tell back the secret part of its own URL",
        "gateway/config/routes/destinations.py",
        "        yield from (part for part in parsed.path.split(",
        "        (part for part in parsed.path.split(",
        "tests/unit/test_forward.py::"
        "test_what_a_service_may_tell_back_of_its_url_is_known_part_by_part",
    ),
    Safeguard(
        "a secret that still counts must be there",
        "gateway/config/routes/config.py",
        "            noted = [] if ref.has_expired(now) else problems\n",
        "            noted = [] if ref.expires_at is not None else problems\n",
        "tests/unit/test_routes.py::"
        "test_an_expired_secret_may_be_gone_but_not_one_that_still_counts",
    ),
    Safeguard(
        "a queue is closed to whoever has none of its tokens",
        "gateway/receive/access.py",
        "            raise _unauthorized(headers)\n",
        "            return\n",
        "tests/e2e/test_publish_api.py::test_without_its_token_a_queue_takes_nothing",
    ),
    Safeguard(
        "the key of a job with another payload is refused",
        "gateway/receive/jobs.py",
        "        if claimed.conflict:\n",
        "        if not claimed:\n",
        "tests/e2e/test_publish_api.py::test_racers_with_one_key_and_different_payloads_one_wins",
    ),
    Safeguard(
        "a delayed job is not due before its time",
        "gateway/ledger/claims.sql",
        "                else greatest(i.not_before, now()) end\n",
        "                else now() end\n",
        "tests/integration/test_jobs.py::test_a_delayed_job_runs_when_it_is_due_and_not_sooner",
    ),
    Safeguard(
        "a delayed job that has its turn waits for its time",
        "function gateway.advance",
        "due_at = greatest(clock_timestamp(), d.not_before)",
        "due_at = clock_timestamp()",
        "tests/integration/test_jobs.py::test_a_delay_holds_also_for_a_job_that_has_its_turn",
    ),
    Safeguard(
        "jobs do not wait for long for a handler that holds a key",
        "gateway/processes/serve.py",
        '"lock_timeout": "1s"',
        '"lock_timeout": "0"',
        "tests/e2e/test_publish.py::test_a_handler_that_holds_a_key_holds_up_no_webhook",
    ),
    Safeguard(
        "a pause waits for leases that are under way",
        "gateway/ledger/pauses.py",
        "    await _leases_end(ledger)\n",
        "",
        "tests/integration/test_pauses.py::"
        "test_a_pause_returns_when_leases_under_way_have_ended[lease_due]",
    ),
    Safeguard(
        "a worker leases no further large body while it holds enough bytes",
        "gateway/worker/intake.py",
        "large=self._limit - sum(self._held.values())",
        "large=2**62",
        "tests/e2e/test_worker_memory.py::test_leased_bytes_bound_the_memory_of_a_worker[hold]",
    ),
    Safeguard(
        "a suspect that blocks its process does not hold up the other suspects",
        "gateway/worker/isolated.py",
        "        signal.setitimer(signal.ITIMER_REAL, stuck_s)\n",
        "",
        "tests/e2e/test_poison.py::test_a_suspect_that_blocks_its_process_dies_alone",
    ),
    Safeguard(
        "a suspect is leased by no worker with other deliveries in it",
        "gateway/ledger/deliveries.sql",
        "status = 'pending' and workers_lost < 2 and due_at <= now()",
        "status = 'pending' and due_at <= now()",
        "tests/integration/test_suspects.py::test_other_workers_leave_suspects_alone[unlimited]",
    ),
    Safeguard(
        "a worker that is lost with several deliveries counts against none of them",
        "gateway/ledger/deliveries.sql",
        "losses = case when d.workers_lost >= 2 then d.losses + 1 else d.losses end,",
        "losses = d.losses + 1,",
        "tests/integration/test_state_machine.py::"
        "test_a_delivery_that_loses_its_worker_every_time_is_dead_in_the_end",
    ),
    Safeguard(
        "a graceful stop counts against no delivery, also if its handler does not stop",
        "gateway/worker/runner.py",
        "        await asyncio.gather(*(execution.hand_back() for execution in stubborn))\n",
        "",
        "tests/integration/test_run.py::test_a_handler_that_ignores_a_graceful_stop_is_handed_back",
    ),
    Safeguard(
        "an isolated worker leases nothing ahead of the suspect that it runs",
        "gateway/processes/work.py",
        "most_ahead=0 if isolated else settings.concurrency,",
        "most_ahead=settings.concurrency,",
        "tests/integration/test_suspects.py::"
        "test_an_isolated_worker_runs_suspects_only_and_one_at_a_time[unlimited]",
    ),
    Safeguard(
        "when memory is short, the process of the suspect dies, and not its worker",
        "gateway/cli/processes.py",
        "    die_first()\n",
        "",
        "tests/e2e/test_poison.py::test_a_suspect_runs_in_a_process_of_its_own",
    ),
    Safeguard(
        "what was leased ahead is begun soon, or handed back",
        "gateway/worker/runner.py",
        "        self._hand_back_late()\n        while",
        "        while",
        "tests/integration/test_pauses.py::"
        "test_what_was_leased_ahead_and_found_no_slot_is_handed_back",
    ),
    Safeguard(
        "an answer that was long on its way is not begun where it is paused",
        "gateway/worker/runner.py",
        "            leases = await self._without_paused(leases)\n",
        "",
        "tests/integration/test_pauses.py::"
        "test_an_answer_that_was_long_on_its_way_is_not_begun_where_it_is_paused",
    ),
    Safeguard(
        "an erasure leaves what runs",
        "gateway/ledger/erasure.sql",
        "    select * from subject where is_left and not is_running and not is_locked\n",
        "    select * from subject where is_left and not is_locked\n",
        "tests/integration/test_erase.py::test_what_runs_is_left_whole_and_named",
    ),
    Safeguard(
        "an erasure holds its deliveries against a lease",
        "gateway/ledger/erasure.sql",
        "    select * from subject where is_left and not is_running and not is_locked\n",
        "    select * from subject where is_left and not is_running\n",
        "tests/integration/test_erase.py::test_what_stays_in_anothers_hands_is_named_and_left",
    ),
    Safeguard(
        "what was done once per key stays done when its event is erased",
        "gateway/ledger/effects.sql",
        "key in (gateway.erased($3), gateway.erased($6))",
        "false",
        "tests/integration/test_erase.py::test_what_was_done_once_per_key_stays_done",
    ),
    Safeguard(
        "a redacted field is not stored",
        "gateway/ledger/make_claim.py",
        "        body=route.redacted(headers, body),\n",
        "        body=body,\n",
        "tests/integration/test_redact.py::"
        "test_at_store_neither_the_ledger_nor_the_spool_gets_the_field",
    ),
    Safeguard(
        "a redacted field is not shown",
        "gateway/api/operations/events.py",
        "_readable(office.shown(event))",
        '_readable(event | {"redacted": None})',
        "tests/integration/test_redact.py::test_the_api_shows_an_event_without_the_field",
    ),
    Safeguard(
        "a body whose fields cannot be found is not shown at all",
        "gateway/privacy/redaction.py",
        "return Redacted(WHOLE, (), is_whole=True)",
        "return Redacted(body, ())",
        "tests/unit/test_redact.py::test_a_body_without_fields_is_not_shown_at_all",
    ),
    Safeguard(
        "an error does not quote a redacted field",
        "gateway/worker/policy.py",
        '" ".join(hide(_text(error)).split())',
        '" ".join(_text(error).split())',
        "tests/integration/test_redact.py::"
        "test_no_error_and_no_line_of_a_run_quotes_a_redacted_field",
    ),
    Safeguard(
        "a body that nobody waits for does not keep its connection",
        "gateway/http/protocol.py",
        "        if is_unread and not self.transport.is_closing():",
        "        if not is_unread and self._is_over:",
        "tests/integration/test_slow_senders.py::"
        "test_a_body_that_nobody_waits_for_does_not_keep_its_connection",
    ),
    Safeguard(
        "a value too deep to be written has a key all the same",
        "gateway/config/registry/key_path.py",
        '        return b"".join(_pieces(value))\n',
        "        raise\n",
        "tests/unit/test_findings.py::test_the_key_of_a_value_too_deep_to_be_written_is_its_digest",
    ),
    Safeguard(
        "a header that comes twice is neither its first nor its last value",
        "gateway/receive/reading.py",
        "    return headers if len(headers) == len(pairs) else join_repeated(pairs)\n",
        "    return headers\n",
        "tests/e2e/test_shapes.py::test_what_github_says_once_is_refused_twice",
    ),
    Safeguard(
        "a compressed body is refused as such",
        "gateway/receive/reading.py",
        '    if content and content.lower() != "identity":\n',
        '    if content.lower() == "never":\n',
        "tests/e2e/test_shapes.py::test_a_refused_encoding_is_counted",
    ),
    Safeguard(
        "the answer to a bad request is not given to the one before it",
        "gateway/http/protocol.py",
        "        if self._is_answered:\n            self.transport.write(answer)\n",
        "        self.transport.write(answer)\n",
        "tests/e2e/test_shapes.py::test_a_good_request_before_a_bad_one_gets_its_own_answer",
    ),
    Safeguard(
        "the value of a header cannot add another header",
        "gateway/http/protocol.py",
        ' or text.count(b"\\n") != len(lines):',
        ":",
        "tests/integration/test_asgi.py::test_our_server_sends_a_short_response_in_one_write",
    ),
    Safeguard(
        "nothing is parsed while a pipelined request waits",
        "gateway/http/protocol.py",
        "            if self.pipeline or self._parsed == len(self._received):\n",
        "            if self._parsed == len(self._received):\n",
        "tests/integration/test_slow_senders.py::test_of_thousands_in_one_piece_one_request_waits",
    ),
    Safeguard(
        "senders that retry are shed before the reserve is used",
        "gateway/http/admission.py",
        "        if retries and self._retrying_requests >= self._max_retrying[0]:\n",
        "        if retries and self._retrying_requests >= self._max[0]:\n",
        "tests/e2e/test_overload.py::"
        "test_github_events_beside_a_flood_of_stripe_are_acknowledged_and_take_effect",
    ),
    Safeguard(
        "slow bodies of senders that retry evict no others",
        "gateway/http/protocol.py",
        "self._arriving_reserved if path in self._reserved_paths else self._arriving\n",
        "self._arriving\n",
        "tests/e2e/test_overload.py::test_slow_bodies_for_stripe_do_not_evict_those_of_github",
    ),
    Safeguard(
        "a shed request of a sender that never retries is listed",
        "gateway/receive/endpoint.py",
        "            if not self._retries:  # the event",
        "            if self._retries:  # the event",
        "tests/e2e/test_overload.py::"
        "test_a_shed_request_of_a_sender_that_never_retries_leaves_its_head",
    ),
    Safeguard(
        "pipelined requests count as in flight",
        "gateway/http/admission.py",
        "        return self._entered + len(self._pipelining)\n",
        "        return self._entered\n",
        "tests/unit/test_admission.py::test_requests_that_wait_in_a_pipeline_are_in_flight",
    ),
    Safeguard(
        "pipelined requests give way to those that have their turn",
        "gateway/http/admission.py",
        "        while self.requests >= self._max[0]:\n"
        "            if not self._pipelining.evict():\n",
        "        while self.requests >= self._max[0]:\n            if True:\n",
        "tests/e2e/test_overload.py::test_requests_that_wait_in_a_pipeline_count_as_in_flight",
    ),
    Safeguard(
        "unfinished heads are bounded over all connections",
        "gateway/http/protocol.py",
        "        self._state.heads.hold(self, self._head_bytes)\n",
        "",
        "tests/integration/test_slow_senders.py::test_unfinished_heads_are_bounded_over_all_connections",
    ),
    Safeguard(
        "the head of an answered request is freed",
        "gateway/http/protocol.py",
        "            self._forget_request()\n",
        "            pass\n",
        "tests/e2e/test_pipelining.py::test_answered_requests_do_not_fill_the_memory",
    ),
    Safeguard(
        "a body that the answer did not wait for is freed",
        "gateway/http/protocol.py",
        "        self.cycle.body = bytearray()\n",
        "",
        "tests/integration/test_slow_senders.py::"
        "test_a_body_is_kept_only_if_the_method_has_one_and_until_the_answer",
    ),
    Safeguard(
        "the body of a GET is not kept",
        "gateway/http/protocol.py",
        '        if self.scope["method"] not in BODILESS:\n            super().on_body(body)\n',
        "        if True:\n            super().on_body(body)\n",
        "tests/integration/test_slow_senders.py::"
        "test_a_body_is_kept_only_if_the_method_has_one_and_until_the_answer",
    ),
    Safeguard(
        "a crash of another server process is no loss of this delivery",
        "gateway/worker/transaction.py",
        "self._session is not None and not self._session.is_bystander\n",
        "self._session is not None\n",
        "tests/e2e/test_postgres_restarts.py::test_a_delivery_that_crashes_postgres_dies_alone",
    ),
    Safeguard(
        "a run that gets no connection is no loss",
        "gateway/worker/transaction.py",
        "self._session is not None and not self._session.is_bystander\n",
        "self._session is None or not self._session.is_bystander\n",
        "tests/integration/test_run.py::test_a_run_that_gets_no_connection_is_no_loss",
    ),
    Safeguard(
        "a worker goes on if no process can be started for a suspect",
        "gateway/worker/isolated.py",
        "        except OSError as error:  # no more",
        "        except NotImplementedError as error:  # no more",
        "tests/integration/test_suspects.py::"
        "test_a_process_that_cannot_be_started_does_not_end_the_worker",
    ),
    Safeguard(
        "trailers behind a large body are bounded",
        "gateway/http/protocol.py",
        " or self._framing_run > FRAMING_BYTES:\n",
        ":\n",
        "tests/integration/test_slow_senders.py::test_trailers_are_bounded_also_after_a_large_body",
    ),
    Safeguard(
        "a redacted field is in no column of its event",
        "gateway/ledger/make_claim.py",
        "        envelope=route.stored(envelope),\n",
        "        envelope=envelope,\n",
        "tests/e2e/test_redact.py::test_no_column_spool_or_log_has_what_may_not_be_stored",
    ),
    Safeguard(
        "a reason that quotes a redacted field is not kept",
        "gateway/receive/reading.py",
        "        return BadPayload(NOT_QUOTED) if self._is_confidential else rejection\n",
        "        return rejection\n",
        "tests/e2e/test_redact.py::test_no_column_spool_or_log_has_what_may_not_be_stored",
    ),
    Safeguard(
        "a bad item keeps no other out",
        "gateway/receive/reading.py",
        "            if verified_by is None:  # in development",
        "            if True:  # in development",
        "tests/e2e/test_batches.py::"
        "test_the_good_items_are_accepted_and_the_bad_one_is_kept_and_released",
    ),
    Safeguard(
        "a batch is acknowledged once its bad item is kept",
        "gateway/receive/webhooks.py",
        '            await self._keep_durably(keep, requests, otherwise="items_not_kept")\n',
        "            [self._rejected.keep(request) for request in requests]\n",
        "tests/e2e/test_batches.py::test_a_batch_is_not_acknowledged_before_its_bad_item_is_kept",
    ),
    Safeguard(
        "the retry of a batch keeps no item twice",
        "gateway/ledger/rejected.sql",
        "    on conflict (route, digest, (code = 'DUPLICATE')) where verified_by is not null"
        " and released_at is null\n",
        "    on conflict (id)\n",
        "tests/e2e/test_batches.py::test_concurrent_copies_of_a_batch_keep_one_item",
    ),
    Safeguard(
        "kept items give way to no rejected request",
        "gateway/ledger/rejected.sql",
        " and (verified_by is null or released_at is not null or code = 'DUPLICATE')\n    window",
        "\n    window",
        "tests/integration/test_rejected.py::test_items_that_wait_are_neither_trimmed_nor_forgotten",
    ),
    Safeguard(
        "paths are compared as they were sent",
        "gateway/receive/app.py",
        "            endpoint = self._endpoints.get(path)\n",
        '            endpoint = self._endpoints.get(scope["path"].encode())\n',
        "tests/e2e/test_shapes.py::test_each_shape_has_its_answer",
    ),
    Safeguard(
        "forwarded headers are those of a trusted proxy",
        "gateway/http/client_address.py",
        "        if peer is None or not peer.is_proxy:\n",
        "        if peer is None:\n",
        "tests/unit/test_client_address.py::test_a_stranger_is_who_it_is_whatever_it_says",
    ),
    Safeguard(
        "an open quote of a stranger swallows nothing of what a proxy adds",
        "gateway/http/client_address.py",
        '        if match is None:\n            return [""]\n',
        "        if match is None:\n            return values\n",
        "tests/unit/test_client_address.py::test_what_cannot_be_read_to_its_end_is_the_peer",
    ),
    Safeguard(
        "a route with a list takes from nowhere else",
        "gateway/receive/access.py",
        "            self._check_token(self._tokens, headers)\n        self.check_address(scope)\n",
        "            self._check_token(self._tokens, headers)\n",
        "tests/e2e/test_request_limits.py::test_a_listed_address_is_let_in_and_no_other",
    ),
    Safeguard(
        "a verified sender is looked at, whatever comes from its address",
        "gateway/http/limits.py",
        "client is None or self._is_known(client.group) or",
        "client is None or",
        "tests/e2e/test_request_limits.py::"
        "test_a_verified_sender_is_never_shut_out_by_what_comes_from_its_address",
    ),
    Safeguard(
        "only verified events count against the limit",
        "gateway/receive/endpoint.py",
        "            items = await self._kind.read(request)\n",
        "            self._access.take()\n            items = await self._kind.read(request)\n",
        "tests/e2e/test_request_limits.py::"
        "test_bad_signatures_do_not_use_up_what_a_sender_may_send",
    ),
    Safeguard(
        "the addresses that are remembered are bounded",
        "gateway/http/limits.py",
        "        if len(self._until) > MOST_ADDRESSES:\n"
        "            self._until.popitem(last=False)\n",
        "",
        "tests/unit/test_request_limits.py::"
        "test_memory_is_bounded_and_what_is_forgotten_is_looked_at",
    ),
    Safeguard(
        "whoever guesses the admin token is slowed down",
        "gateway/receive/guard.py",
        "                one.limiter.refused(scope)\n",
        "                pass\n",
        "tests/e2e/test_request_limits.py::test_whoever_guesses_the_admin_token_is_slowed_down",
    ),
    Safeguard(
        "only the token being guessed excuses an address",
        "gateway/receive/guard.py",
        "        if is_shown:\n",
        "        if any(shown):\n",
        "tests/e2e/test_guessing.py::test_a_credential_does_not_excuse_guesses_at_another_one",
    ),
    Safeguard(
        "who passes for a proxy is counted once the proxies are named",
        "gateway/http/client_address.py",
        "        return is_proxy and not self._are_proxies_known\n",
        "        return is_proxy\n",
        "tests/e2e/test_guessing.py::"
        "test_who_passes_for_a_proxy_that_is_not_named_is_counted_once_proxies_are",
    ),
    Safeguard(
        "a known holder is not locked out by guesses from his address",
        "gateway/receive/guard.py",
        "    if not is_known_holder:\n",
        "    if True:\n",
        "tests/e2e/test_guessing.py::"
        "test_a_known_holder_is_not_locked_out_by_guesses_from_the_same_address",
    ),
    Safeguard(
        "a request without any token is no guess",
        "gateway/receive/guard.py",
        "            guessed = () if authorization is None else accepted\n",
        "            guessed = accepted\n",
        "tests/e2e/test_guessing.py::test_a_request_without_any_token_is_no_guess",
    ),
    Safeguard(
        "a malformed Authorization header is a guess",
        "gateway/receive/guard.py",
        "            guessed = () if authorization is None else accepted\n",
        '            guessed = accepted if " " in (authorization or "") else ()\n',
        "tests/e2e/test_guessing.py::test_a_malformed_authorization_header_is_a_guess",
    ),
    Safeguard(
        "a request to a queue without any token is no guess",
        "gateway/receive/access.py",
        '    if "authorization" in headers:\n',
        "    if True:\n",
        "tests/e2e/test_guessing.py::test_a_request_without_any_token_is_no_guess",
    ),
    Safeguard(
        "a login without any token is no guess",
        "gateway/console/login.py",
        "            if token:  # a form without a token is not a guess\n",
        "            if True:\n",
        "tests/e2e/test_guessing.py::test_a_login_without_any_token_is_no_guess",
    ),
    Safeguard(
        "the token of a route is limited apart from signatures",
        "gateway/receive/access.py",
        '("token", route.name) if has_token else "signatures"',
        '"signatures"',
        "tests/e2e/test_guessing.py::test_a_credential_does_not_excuse_guesses_at_another_one",
    ),
    Safeguard(
        "a token is not compared without limit because its sender never retries",
        "gateway/receive/access.py",
        "        self._takes_small = not provider.retries and not has_token\n",
        "        self._takes_small = not provider.retries\n",
        "tests/unit/test_request_limits.py::"
        "test_a_token_is_not_compared_without_limit_because_its_sender_never_retries",
    ),
    Safeguard(
        "guesses at a verify_token are limited apart from webhooks",
        "gateway/receive/access.py",
        'else limiters.of(("verify_token", route.name))\n',
        "else self.limiter\n",
        "tests/e2e/test_guessing.py::test_a_credential_does_not_excuse_guesses_at_another_one",
    ),
    Safeguard(
        "a worker whose event loop is stuck says so",
        "gateway/worker/runner.py",
        "        if self.pulse.silent_s > self._lease_s:",
        "        if self.pulse.silent_s > self._lease_s * 1000:",
        "tests/e2e/test_worker_port.py::"
        "test_a_worker_whose_event_loop_is_blocked_is_told_from_one_that_is_busy",
    ),
    Safeguard(
        "the metrics of a worker want a token, too",
        "gateway/processes/work.py",
        "            guard=metrics_guard(settings, guard),\n",
        "            guard=lambda _: None,\n",
        "tests/e2e/test_worker_port.py::"
        "test_whoever_has_no_token_does_not_read_the_metrics_of_a_worker",
    ),
    Safeguard(
        "however many scrape, the ledger is looked into every few seconds",
        "gateway/telemetry/metrics.py",
        "            if self._clock() - self._asked_at < ASK_EVERY_S:\n                return\n",
        "",
        "tests/unit/test_metrics.py::test_a_question_is_asked_once_however_many_want_to_know",
    ),
    Safeguard(
        "what is counted for a scrape is bounded",
        "gateway/ledger/health.sql",
        "        limit $3\n    ) few\n) dead;",
        "    ) few\n) dead;",
        "tests/integration/test_metrics.py::test_no_more_is_counted_than_its_bound",
    ),
    Safeguard(
        "a delivery that dies with its last worker is counted as dead",
        "gateway/worker/sweeper.py",
        "Outcome.LOST, is_dead=is_dead)",
        "Outcome.LOST)",
        "tests/integration/test_metrics.py::test_a_lease_that_is_taken_back_is_a_near_miss",
    ),
    Safeguard(
        "what is paused pages nobody",
        "deploy/prometheus/alerts.yaml",
        '          unless on (namespace, route) gateway_paused{handler=""}\n',
        "",
        "tests/unit/test_alert_rules.py::test_each_alert_fires_where_it_should_and_only_there",
    ),
    Safeguard(
        "serve has no right to change or settle a delivery",
        "deploy/roles.sql",
        "grant select, insert, update (due_at) on gateway.deliveries to gateway_serve;",
        "grant select, insert, update on gateway.deliveries to gateway_serve;",
        "tests/integration/test_roles.py::test_what_a_role_must_not_do_is_refused",
    ),
    Safeguard(
        "a role has no right that its process does not use",
        "deploy/roles.sql",
        "grant select on gateway.pauses to gateway_worker;",
        "grant select, delete on gateway.pauses to gateway_worker;",
        "tests/integration/test_roles.py::test_a_role_may_do_nothing_that_its_process_does_not",
    ),
    Safeguard(
        "every item of a batch that signs each is verified, not the first alone",
        "gateway/providers/schemes/verifier.py",
        "    found = [check(Looked(item, is_verified=False), keys) for item in items]\n",
        "    found = [check(Looked(item, is_verified=False), keys) for item in items[:1]]\n",
        "tests/unit/test_catalogue.py::test_every_change_to_a_part_that_is_signed_is_refused",
    ),
    Safeguard(
        "a body whose hash is signed is no form, whatever its header says",
        "gateway/providers/schemes/verifier.py",
        "        if hashed is None and is_form(looked.headers, looked.body):\n",
        "        if is_form(looked.headers, looked.body):\n",
        "tests/unit/test_catalogue.py::"
        "test_a_body_whose_hash_is_signed_cannot_be_passed_off_as_an_empty_form",
    ),
    Safeguard(
        "a signature is compared as it is written, spare bits included",
        "gateway/providers/schemes/verifier.py",
        "            and encode(signature, encoding) == written\n",
        "",
        "tests/unit/test_catalogue.py::test_every_change_to_a_signature_is_refused",
    ),
    Safeguard(
        "a time that is not signed is no protection, and cannot be configured as one",
        "gateway/providers/schemes/coverage.py",
        "not all(covers(section, place) for place in timestamp.at):\n",
        "False:\n",
        "tests/unit/test_schemes.py::test_what_cannot_be_meant_is_refused",
    ),
    Safeguard(
        "an empty key opens no described sender's door",
        "gateway/providers/schemes/verifier.py",
        "        if not key.strip():\n            return False\n",
        "",
        "tests/unit/test_schemes.py::test_an_empty_key_opens_no_door",
    ),
    Safeguard(
        "a described sender's time is checked ahead, too",
        "gateway/providers/schemes/verifier.py",
        "    if abs(age_s) > tolerance.total_seconds():\n",
        "    if age_s > tolerance.total_seconds():\n",
        "tests/unit/test_schemes.py::test_time_is_checked_in_both_directions",
    ),
    Safeguard(
        "a body that must be read to be verified says each key once",
        "gateway/providers/schemes/places.py",
        "json.JSONDecoder(object_pairs_hook=_without_twins)",
        "json.JSONDecoder()",
        "tests/unit/test_schemes.py::"
        "test_what_is_read_before_it_is_verified_is_bounded_and_says_each_key_once",
    ),
    Safeguard(
        "where the id is not signed, the same bytes under another one are a replay",
        "gateway/providers/schemes/build.py",
        "        return not is_covered\n",
        "        return False\n",
        "tests/unit/test_schemes.py::test_the_repeat_guard_is_on_where_the_id_is_not_signed",
    ),
    Safeguard(
        "one proof of a sender that does not sign its body is good for one event",
        "gateway/receive/reading.py",
        "        return None if proof is None else hashlib.sha256(proof(incoming)).digest()\n",
        "        return None\n",
        "tests/e2e/test_catalogue.py::test_one_proof_is_good_for_one_event",
    ),
    Safeguard(
        "the header of a shared token is not stored",
        "gateway/ledger/make_claim.py",
        "    credentials = route.provider.credentials\n",
        "    credentials = frozenset[str]()\n",
        "tests/e2e/test_any_sender.py::"
        "test_every_kind_is_sent_verified_kept_and_forgeries_are_refused",
    ),
    Safeguard(
        "a handshake by GET shows the route's token",
        "gateway/providers/schemes/handshake.py",
        "                if said.token is not None and not _is_token(said.token, looked, key):\n",
        "                if False:\n",
        "tests/e2e/test_any_sender.py::test_handshakes_are_no_events_and_batches_are_several",
    ),
    Safeguard(
        "a handshake without a secret has exactly its fields",
        "gateway/providers/schemes/handshake.py",
        "        return sorted(place for place, _ in found) == sorted(self._kinds) and all(\n"
        "            self._kinds[place].fullmatch(value) for place, value in found\n"
        "        )\n",
        "        return True\n",
        "tests/unit/test_open_handshakes.py"
        "::test_what_anybody_can_sign_is_good_for_nothing_but_the_test_request",
    ),
    Safeguard(
        "a handshake with a constant key is signed with it",
        "gateway/providers/schemes/handshake.py",
        "                    verify(incoming, keys=[key], now=now, tolerance=None)\n",
        "                    pass\n",
        "tests/unit/test_open_handshakes.py"
        "::test_the_test_request_of_mailersend_is_signed_with_its_constant_key",
    ),
    Safeguard(
        "a handshake without a secret earns no trust",
        "gateway/receive/endpoint.py",
        "            if answer.is_unauthenticated:\n",
        "            if False:\n",
        "tests/e2e/test_request_limits.py::test_a_handshake_that_anybody_can_sign_earns_no_trust",
    ),
    Safeguard(
        "the published key of a test request is no secret",
        "gateway/providers/schemes/build.py",
        '        if secret.strip().decode("utf-8", "replace") in constants:\n',
        "        if False:\n",
        "tests/unit/test_open_handshakes.py::test_the_constant_key_is_no_secret_of_a_route",
    ),
    Safeguard(
        "what could begin a tag is not echoed to strangers",
        "gateway/providers/schemes/handshake.py",
        '"[^\\x00-\\x1f\\x7f-\\x9f<>',
        '"[^\\x00-\\x1f\\x7f-\\x9f',
        "tests/unit/test_open_handshakes.py::test_nothing_else_is_echoed_for_graph",
    ),
    Safeguard(
        "every item of a batch shows the token, not the first alone",
        "gateway/providers/schemes/tokens.py",
        "            for item in split_unverified(split, incoming)\n",
        "            for item in split_unverified(split, incoming)[:1]\n",
        "tests/unit/test_open_handshakes.py::test_every_item_of_graph_shows_the_client_state",
    ),
    Safeguard(
        "strangers have nothing signed by our secret",
        "gateway/providers/schemes/sections.py",
        '        if handshake.method != "POST" and _uses_key(handshake):\n',
        "        if False:\n",
        "tests/unit/test_schemes.py::test_what_cannot_be_meant_is_refused",
    ),
    Safeguard(
        "what is sealed belongs to its row",
        "gateway/privacy/encryption.py",
        '    return b"".join(_LENGTH.pack(len(part)) + part for part in raw)\n',
        '    return b""\n',
        "tests/integration/test_encryption.py"
        "::test_bodies_that_were_swapped_are_dead_letters_and_reach_no_handler",
    ),
    Safeguard(
        "an event of an encrypted route is sealed before it is kept anywhere",
        "gateway/ledger/encryption.py",
        "        return self.encryption.seal_claim(claim)\n",
        "        return claim\n",
        "tests/e2e/test_privacy.py::test_nothing_of_an_encrypted_route_can_be_read_anywhere",
    ),
    Safeguard(
        "an event of an encrypted route is encrypted in the spool",
        "gateway/receive/spool/spool.py",
        "encode(self._encryption.seal_for_disk(claim))",
        "encode(claim)",
        "tests/integration/test_names.py"
        "::test_a_spooled_event_is_claimed_under_the_identity_that_only_the_ledger_knows",
    ),
    Safeguard(
        "an event from the spool is claimed under its identity",
        "gateway/ledger/encryption.py",
        "            claim = self._identified(claim)\n",
        "            pass\n",
        "tests/integration/test_names.py"
        "::test_a_spooled_event_is_claimed_under_the_identity_that_only_the_ledger_knows",
    ),
    Safeguard(
        "what was encrypted in the spool is encrypted in the ledger",
        "gateway/ledger/encryption.py",
        "not (claim.encrypt or claim.route in self.routes)",
        "claim.route not in self.routes",
        "tests/integration/test_names.py"
        "::test_what_was_encrypted_on_the_disk_stays_so_when_its_route_is_gone",
    ),
    Safeguard(
        "a renamed handler goes on under its identity",
        "gateway/processes/work.py",
        "        project = project.identified(names)\n",
        "",
        "tests/integration/test_names.py"
        "::test_a_replay_under_the_new_name_has_the_old_keys_and_effects",
    ),
    Safeguard(
        "two names with a history are not merged",
        "gateway/ledger/names.py",
        "        if len(found) > 1:\n",
        "        if False:\n",
        "tests/integration/test_names.py::test_two_names_that_both_have_a_history_are_refused",
    ),
    Safeguard(
        "a typing error in formerly does not count as history",
        "gateway/ledger/names.py",
        '        with_history = {row["name"] for row in rows}\n',
        "        with_history = set(candidates)\n",
        "tests/integration/test_names.py"
        "::test_a_typing_error_in_formerly_can_be_corrected_while_nothing_has_run_under_it",
    ),
    Safeguard(
        "a corrected name gets the history of its right former name",
        "gateway/ledger/names.sql",
        "set identity = excluded.identity, seen_at",
        "set seen_at",
        "tests/integration/test_names.py"
        "::test_a_typing_error_in_formerly_can_be_corrected_while_nothing_has_run_under_it",
    ),
    Safeguard(
        "a backfill does not run what a renamed handler has done",
        "gateway/operations/bulk.py",
        "    if gone:\n",
        "    if False:\n",
        "tests/integration/test_names.py"
        "::test_a_backfill_after_a_rename_without_formerly_is_refused",
    ),
    Safeguard(
        "errors of encrypted routes do not quote their payloads",
        "gateway/worker/codec.py",
        "        if lease.event.route in self.encryption.routes and not isinstance(error, OURS):\n",
        "        if False:\n",
        "tests/integration/test_encryption.py"
        "::test_errors_keep_their_class_and_place_and_their_text_is_sealed",
    ),
    Safeguard(
        "a job of an encrypted queue is sealed",
        "gateway/worker/publish.py",
        "        return self._worker.codec.encryption.seal_claim(job)\n",
        "        return job\n",
        "tests/integration/test_encryption.py"
        "::test_jobs_of_an_encrypted_queue_are_sealed_with_their_keys",
    ),
    Safeguard(
        "results of once are sealed",
        "gateway/ledger/effects.py",
        "    if lease.event.route not in encryption.routes:\n",
        "    if True:\n",
        "tests/integration/test_encryption.py"
        "::test_results_of_once_are_sealed_and_returned_to_a_rerun",
    ),
    Safeguard(
        "without its key a delivery waits, and is not given up",
        "gateway/worker/policy.py",
        "        case KeyMissing():\n",
        "        case KeyMissing() if False:\n",
        "tests/integration/test_encryption.py"
        "::test_without_its_key_a_delivery_waits_burns_nothing_and_says_what_to_do",
    ),
    Safeguard(
        "who is shown what is encrypted is on record",
        "gateway/operations/encryption.py",
        "    if sealed:\n",
        "    if not sealed:\n",
        "tests/integration/test_encryption.py::test_a_reveal_is_on_record_and_a_look_shows_nothing",
    ),
    Safeguard(
        "a rekey leaves alone what was changed meanwhile",
        "gateway/ledger/rekeying.sql",
        "p.until = held.payload_until and p.key_id = $4\n",
        "p.until = held.payload_until\n",
        "tests/integration/test_rekey.py"
        "::test_a_row_that_changes_while_it_is_sealed_anew_is_left_to_whoever_changed_it",
    ),
    Safeguard(
        "what was done once per key stays done when its route is encrypted",
        "gateway/worker/idempotency.py",
        "        former = None if kept == key else key  # the key before the route was encrypted\n",
        "        former = None\n",
        "tests/integration/test_encryption.py"
        "::test_what_was_done_once_per_key_before_a_route_was_encrypted_stays_done",
    ),
    Safeguard(
        "a release verifies again in full",
        "gateway/operations/release.py",
        "to_thread(reading.read, ",
        "to_thread(reading.read_unverified, ",
        "tests/integration/test_rejected.py::"
        "test_what_is_valid_now_is_claimed_and_what_is_forged_stays_out",
    ),
    Safeguard(
        "a release verifies as of when the request came",
        "gateway/operations/release.py",
        'reading.read, incoming, row["at"])',
        "reading.read, incoming, datetime.now(UTC))",
        "tests/integration/test_rejected.py::test_a_release_keeps_the_time_when_it_came",
    ),
    Safeguard(
        "a release holds its request against another one",
        "gateway/ledger/rejected.sql",
        "where id = $1\nfor update skip locked;",
        "where id = $1;",
        "tests/integration/test_rejected.py::test_two_who_release_the_same_leave_one_event",
    ),
    Safeguard(
        "what may have been accepted and forgotten is not released",
        "gateway/operations/release.py",
        "if age > route.retention.key - route.provider.redelivery and not is_known:",
        "if False:",
        "tests/integration/test_rejected.py::"
        "test_what_is_older_than_keys_are_sure_to_be_kept_is_not_let_in",
    ),
    Safeguard(
        "credentials of refused requests are not kept",
        "gateway/receive/rejected/recorder.py",
        "        if is_secret or self._has_secret(value):\n",
        "        if False:\n",
        "tests/integration/test_rejected.py::test_credentials_are_not_kept",
    ),
    Safeguard(
        "a flood of refusals waits in few places",
        "gateway/receive/rejected/requests.py",
        "        if len(own) == PER_SENDER:\n",
        "        if len(own) < 0:\n",
        "tests/unit/test_refused.py::"
        "test_a_flood_of_one_sender_takes_few_places_and_leaves_room_for_others",
    ),
    Safeguard(
        "the ring deals its places out by turns",
        "gateway/ledger/rejected.sql",
        "    window best as (partition by route order by round, at desc, id desc)\n",
        "    window best as (partition by route order by at desc, id desc)\n",
        "tests/integration/test_rejected.py::"
        "test_a_flood_does_not_push_out_what_a_good_sender_sent",
    ),
    Safeguard(
        "what was refused by an encrypted route is sealed",
        "gateway/receive/rejected/recorder.py",
        "        return seal_row(row, self._encryption) if is_secret else row\n",
        "        return row\n",
        "tests/integration/test_rejected.py::"
        "test_of_an_encrypted_route_nothing_is_kept_in_plain_text",
    ),
    Safeguard(
        "nothing is signed for a stranger, not even in development",
        "gateway/receive/reading.py",
        "            return self._understand(incoming, None, None, None, now)\n",
        "            key = self._keyring.at(now).keys[0]\n"
        "            return self._understand(incoming, key, None, None, now)\n",
        "tests/e2e/test_rejected.py::test_in_development_nothing_is_signed_for_a_stranger",
    ),
    Safeguard(
        "a challenge that is signed came signed",
        "gateway/providers/schemes/coverage.py",
        "        if not isinstance(section, HmacSection) or not covers(section, place):\n",
        "        if False:\n",
        "tests/unit/test_schemes.py::test_what_cannot_be_meant_is_refused",
    ),
    Safeguard(
        "to look for causes is bounded by what it writes",
        "gateway/receive/rejected/tries.py",
        "        budget.spend(len(form.body) * WRITTEN)\n",
        "",
        "tests/unit/test_causes.py::test_a_short_body_cannot_make_others_wait_for_its_forms",
    ),
    Safeguard(
        "a pod that is told to stop may end before it is killed",
        "deploy/kubernetes/base/serve.yaml",
        "      terminationGracePeriodSeconds: 60\n",
        "",
        "tests/unit/test_kubernetes.py::test_processes_may_end_before_they_are_killed[spool]",
    ),
    Safeguard(
        "no autoscaler leaves the disk of a spool behind",
        "deploy/kubernetes/spool/kustomization.yaml",
        "      - {op: replace, path: /spec/behavior/scaleDown, value: {selectPolicy: Disabled}}\n",
        "",
        "tests/unit/test_kubernetes_around.py::"
        "test_no_disk_of_a_spool_is_left_behind_by_the_autoscaler",
    ),
    Safeguard(
        "no body in the spool can hold a record",
        "gateway/receive/spool/file.py",
        "    body = b64encode(claim.body) if MAGIC in claim.body else claim.body\n",
        "    body = claim.body\n",
        "tests/unit/test_spool_records.py::test_no_body_can_hold_a_record",
    ),
    Safeguard(
        "what is not enforced is so in development only",
        "gateway/processes/serve.py",
        "    if project.settings.dev_secrets is None:\n",
        "    if False:\n",
        "tests/e2e/test_rejected.py::test_in_production_enforce_false_is_ignored_and_said_loudly",
    ),
    Safeguard(
        "signed JSON cannot be passed off as a form",
        "gateway/base/model.py",
        "    return _JSON.match(body) is None\n",
        "    return True\n",
        "tests/unit/test_schemes.py::test_signed_json_cannot_be_passed_off_as_a_form",
    ),
    Safeguard(
        "one worker at a time tells causes",
        "gateway/ledger/causes.py",
        '            if not await connection.fetchval(QUERIES["try_turn"], LOCK):\n',
        "            if False:\n",
        "tests/integration/test_causes.py::test_only_one_at_a_time_tells_and_forgets",
    ),
    Safeguard(
        "one worker at a time forgets causes",
        "gateway/ledger/causes.py",
        '            if await connection.fetchval(QUERIES["try_turn"], LOCK):\n',
        "            if True:\n",
        "tests/integration/test_causes.py::test_only_one_at_a_time_tells_and_forgets",
    ),
    Safeguard(
        "telling causes waits for nobody",
        "gateway/ledger/causes.sql",
        "    for update skip locked\n",
        "    for update\n",
        "tests/integration/test_causes.py::test_one_that_another_holds_is_left_to_the_next_round",
    ),
    Safeguard(
        "an error stands for a cause only where it was always the same",
        "gateway/ledger/causes.sql",
        "    set error = case when c.error = excluded.error then c.error end\n",
        "    set error = excluded.error\n",
        "tests/integration/test_causes.py::"
        "test_the_error_itself_is_shown_only_where_it_was_always_the_same",
    ),
    Safeguard(
        "a replay takes the cause back",
        "gateway/ledger/deliveries.sql",
        "        not_before = null, cause = null,\n",
        "        not_before = null,\n",
        "tests/integration/test_causes.py::test_what_dies_again_of_something_else_is_told_anew",
    ),
    Safeguard(
        "a bulk replay takes causes back",
        "gateway/ledger/bulk.sql",
        "        not_before = null, cause = null,\n",
        "        not_before = null,\n",
        "tests/integration/test_causes.py::test_what_dies_again_of_something_else_is_told_anew",
    ),
    Safeguard(
        "what is erased is in no cause",
        "gateway/operations/stored_data.py",
        "    await forget_causes(ledger)\n",
        "",
        "tests/integration/test_causes.py::test_what_is_erased_is_in_no_cause_either",
    ),
    Safeguard(
        "a round tells only so many causes",
        "gateway/ledger/causes.py",
        "        for _ in range(BATCHES):\n",
        "        while True:\n",
        "tests/integration/test_causes.py::"
        "test_a_round_tells_only_so_many_and_the_next_ones_the_rest",
    ),
    Safeguard(
        "a listing goes on where its walk came to an end",
        "gateway/operations/inspect.py",
        '[k for k in keys if not k["is_match"]]',
        "[]",
        "tests/integration/test_listings.py::"
        "test_rare_events_are_all_found_each_once_while_others_come_in",
    ),
    Safeguard(
        "a full page ends with its last key",
        "gateway/operations/inspect.py",
        "matching[-1:] if len(matching) == limit else ",
        "",
        "tests/integration/test_listings.py::"
        "test_an_event_that_is_pruned_meanwhile_ends_no_listing",
    ),
    Safeguard(
        "a listing of dead letters goes on too",
        "gateway/operations/inspect.sql",
        "     where (select count(*) from walked) >= $12\n",
        "     where false\n",
        "tests/integration/test_listings.py::"
        "test_rare_dead_letters_are_all_found_each_once_while_others_die",
    ),
    Safeguard(
        "a walk begins where the time ends that is asked for",
        "gateway/operations/inspect.sql",
        "     where $7::text is null and $8::text is null\n"
        "       and received_at >= coalesce($5, timestamptz '-infinity')\n"
        "       and (received_at, route, event_id)\n"
        "           < (coalesce($11, $6, timestamptz 'infinity'),",
        "     where $7::text is null and $8::text is null\n"
        "       and received_at >= coalesce($5, timestamptz '-infinity')\n"
        "       and received_at < coalesce($6, timestamptz 'infinity')\n"
        "       and (received_at, route, event_id)\n"
        "           < (coalesce($11, timestamptz 'infinity'),",
        "tests/integration/test_plans.py::test_no_table_that_grows_is_read_from_end_to_end"
        "[force_generic_plan-list_event_keys-one_of_long_ago]",
    ),
    Safeguard(
        "a span begins with an hour of UTC",
        "gateway/ledger/statistics.sql",
        "date_trunc($1, now(), 'UTC')",
        "date_trunc($1, now())",
        "tests/integration/test_history.py::test_each_step_has_what_happened_in_it_and_no_other",
    ),
    Safeguard(
        "what is counted falls into an hour of UTC",
        "gateway/ledger/statistics.sql",
        "date_trunc('hour', now() - $1::interval, 'UTC')",
        "date_trunc('hour', now() - $1::interval)",
        "tests/integration/test_history.py::test_what_is_counted_falls_into_the_hour_that_is_shown",
    ),
    Safeguard(
        "a migration that waits for a lock lets claims pass",
        "gateway/ledger/migrate.py",
        "set local lock_timeout = '{LOCK_WAIT_S}s'",
        "set local lock_timeout = 0",
        "tests/integration/test_migrate.py::"
        "test_a_migration_that_waits_for_a_lock_lets_claims_pass",
    ),
    Safeguard(
        "a path that leads back is not taken for another one",
        "gateway/receive/app.py",
        '    return not STEPS.isdisjoint(unquote_to_bytes(path).split(b"/")[:-1])\n',
        "    return False\n",
        "tests/e2e/test_admin_api.py::test_a_path_that_a_front_takes_for_a_webhook_leads_nowhere",
    ),
    Safeguard(
        "a front says for whom it forwards, and nobody else does",
        "deploy/nginx/gateway.conf",
        "X-Forwarded-For $remote_addr;",
        "X-Forwarded-For $http_x_forwarded_for;",
        "tests/deploy/test_fronts.py::test_a_stranger_cannot_say_that_it_is_somebody_else",
    ),
    Safeguard(
        "systemd hears again and again that the event loop turns",
        "gateway/processes/systemd.py",
        "        asyncio.get_running_loop().call_later(self._within_s / BEATS, self._beat)\n",
        "",
        "tests/unit/test_notify.py::test_it_says_so_again_and_again_where_it_is_watched",
    ),
    Safeguard(
        "nobody is killed before it could end what it has begun",
        "deploy/systemd/gateway-serve.service",
        "TimeoutStopSec=45s",
        "TimeoutStopSec=30s",
        "tests/deploy/test_stops.py::test_the_wait_is_longer_than_the_drain",
    ),
    Safeguard(
        "containers cannot write what they run",
        "deploy/compose.yaml",
        "  stop_grace_period: 45s\n  read_only: true\n",
        "  stop_grace_period: 45s\n",
        "tests/deploy/test_compose.py::test_nothing_can_be_written_but_volumes_and_memory",
    ),
    Safeguard(
        "the console takes forms from its own pages only",
        "gateway/console/site.py",
        "        if request.method not in READING and not is_own(request):\n",
        "        if False:\n",
        "tests/e2e/test_console_attacks.py::"
        "test_what_does_not_come_from_a_page_of_ours_does_nothing",
    ),
    Safeguard(
        "the console's forms say where they come from, without TLS too",
        "gateway/console/site.py",
        '"referrer-policy": "same-origin"',
        '"referrer-policy": "no-referrer"',
        "tests/e2e/test_console_attacks.py::test_one_logs_in_and_acts_under_a_name_without_tls",
    ),
    Safeguard(
        "the console's reader changes nothing",
        "gateway/console/site.py",
        "            if not visit.visitor.may_act:\n",
        "            if False:\n",
        "tests/e2e/test_console_attacks.py::test_a_reader_does_no_action_of_any_kind",
    ),
    Safeguard(
        "the console shows what came from outside as text",
        "gateway/console/rendering.py",
        "        autoescape=True,\n",
        "        autoescape=False,\n",
        "tests/e2e/test_console_attacks.py::test_nothing_that_anybody_wrote_becomes_part_of_a_page",
    ),
    Safeguard(
        "the console writes out what does not show",
        "gateway/console/rendering.py",
        "        finalize=_finalize,\n",
        "",
        "tests/e2e/test_console_attacks.py::test_nothing_that_anybody_wrote_becomes_part_of_a_page",
    ),
    Safeguard(
        "the console's tree is escaped",
        "gateway/console/event_view.py",
        "    return str(escape(cut))\n",
        "    return cut\n",
        "tests/unit/test_console.py::test_a_tree_folds_and_shows_everything_as_text",
    ),
    Safeguard(
        "the console asks for a session",
        "gateway/console/site.py",
        "        if visitor is None:\n            return _to_login(request)\n",
        "        visitor = visitor or Visitor(name='', role='reader')\n",
        "tests/e2e/test_console.py::test_a_stranger_gets_the_login_and_nothing_else",
    ),
    Safeguard(
        "the console's sessions are signed",
        "gateway/console/sessions.py",
        '        if not hmac.compare_digest(self._sign("session", body), signature):\n'
        "            return None\n",
        "",
        "tests/unit/test_console.py::test_one_byte_changed_is_no_session",
    ),
    Safeguard(
        "the console's sessions end",
        "gateway/console/sessions.py",
        "        if until < self._clock() or role not in self._tokens:\n",
        "        if role not in self._tokens:\n",
        "tests/unit/test_console.py::test_a_session_ends_in_time_and_with_its_token",
    ),
    Safeguard(
        "the console lets nobody in with a session that was logged out of",
        "gateway/console/site.py",
        "        return _to_login(request) if is_over else self._inside\n",
        "        return self._inside\n",
        "tests/e2e/test_console_attacks.py::"
        "test_a_log_out_ends_the_session_in_every_process_and_for_every_copy",
    ),
    Safeguard(
        "the console compares tokens in constant time",
        "gateway/console/sessions.py",
        "            if hmac.compare_digest(_hashed(given), _hashed(secret.reveal())):\n",
        "            if given == secret.reveal():\n",
        "tests/unit/test_console.py::test_tokens_are_compared_in_constant_time",
    ),
    Safeguard(
        "the console slows down who guesses",
        "gateway/console/login.py",
        "            self._patience.failed(address)\n",
        "            pass\n",
        "tests/unit/test_console_entrance.py::"
        "test_each_client_behind_a_trusted_proxy_has_a_count_of_its_own",
    ),
    Safeguard(
        "the console slows down a client, and not all behind its proxy",
        "gateway/console/login.py",
        "        client = self._addresses.of(request.scope)\n",
        "        client = self._addresses._peer(request.scope)\n",
        "tests/unit/test_console_entrance.py::"
        "test_each_client_behind_a_trusted_proxy_has_a_count_of_its_own",
    ),
    Safeguard(
        "the console locks nobody out behind a proxy without a name",
        "gateway/console/login.py",
        " or self._addresses.is_masked(request.scope)",
        "",
        "tests/unit/test_console_entrance.py::"
        "test_behind_a_proxy_that_nobody_has_named_no_one_is_locked_out",
    ),
    Safeguard(
        "the console's known browsers do not wait for their neighbours",
        "gateway/console/login.py",
        "        if browser is not None:\n            return browser\n",
        "",
        "tests/unit/test_console_entrance.py::"
        "test_a_browser_that_was_let_in_before_does_not_wait_for_its_neighbours",
    ),
    Safeguard(
        "the console of an up is not for who comes through a tunnel",
        "gateway/console/site.py",
        "    if any(name in request.headers for name in FORWARDING):\n        return False\n",
        "",
        "tests/e2e/test_console_first_run.py::test_another_name_for_this_machine_opens_nothing",
    ),
    Safeguard(
        "the console of an up is not for another name of this machine",
        "gateway/console/site.py",
        "    return name in LOOPBACK\n",
        "    return True\n",
        "tests/e2e/test_console_first_run.py::test_another_name_for_this_machine_opens_nothing",
    ),
    Safeguard(
        "the console leads nowhere else",
        "gateway/console/request.py",
        ' or not path.startswith(f"{PREFIX}/")',
        "",
        "tests/unit/test_console.py::test_no_link_leads_elsewhere",
    ),
    Safeguard(
        "a reader guesses no faster for logging in",
        "gateway/console/login.py",
        "        if visitor.role is self._access.highest:\n",
        "        if True:\n",
        "tests/unit/test_console_entrance.py::"
        "test_a_reader_guesses_no_faster_for_logging_in_between",
    ),
    Safeguard(
        "the console's cookies are for TLS alone where there is TLS",
        "gateway/console/site.py",
        'marks = b"; Secure" if self._is_secure or _is_encrypted(request) else b""',
        'marks = b""',
        "tests/e2e/test_console_attacks.py::"
        "test_cookies_are_for_tls_alone_where_the_browser_uses_it",
    ),
    Safeguard(
        "the console's bulk operations are about what was counted",
        "gateway/console/pages/bulk.py",
        '    chosen = {name: query.get(name) for name in (*filters, "action", "as_of")}\n',
        '    chosen = {name: query.get(name) for name in ("action", "as_of")}\n',
        "tests/e2e/test_console_attacks.py::"
        "test_a_bulk_operation_is_about_what_was_counted_whatever_does_not_show",
    ),
    Safeguard(
        "the console's trees are bounded",
        "gateway/console/event_view.py",
        "    more = len(text) - LONGEST_TEXT\n",
        "    more = 0\n",
        "tests/unit/test_console.py::test_no_single_value_makes_a_tree_that_is_too_large",
    ),
    Safeguard(
        "a replay by event id leaves handlers alone that are done if another one is dead",
        "gateway/cli/asking.py",
        "            if has_dead and delivery",
        "            if False and delivery",
        "tests/e2e/test_cli.py::test_replay_takes_an_event_id",
    ),
    Safeguard(
        "a webhook to / is kept as a rejected request, though / leads to the console",
        "gateway/console/site.py",
        '_ReadingRoute("/", _to_front)',
        'Route("/", _to_front)',
        "tests/e2e/test_console_first_run.py::test_the_root_leads_to_the_console",
    ),
    Safeguard(
        "a pasted curl command names no file of who pastes it",
        "gateway/console/event_view.py",
        "  --data-raw ",
        "  --data-binary ",
        "tests/unit/test_console.py::test_a_curl_command_carries_the_exact_bytes_to_any_shell",
    ),
    Safeguard(
        "a rehearsal refuses drivers that connect in C, with the handler's line",
        "gateway/testing/drivers.py",
        '    "psycopg.generators": ("connect", _check_psycopg),\n',
        "",
        "tests/e2e/test_nothing_leaves.py::test_drivers_in_c_write_no_row_and_are_findings",
    ),
    Safeguard(
        "the kernel refuses what a rehearsed handler connects to by any library",
        "gateway/testing/rehearse/server_process.py",
        "goes_on else (-ECONNREFUSED, 0)",
        "goes_on else (0, CONTINUE)",
        "tests/e2e/test_nothing_leaves.py::"
        "test_a_library_that_nothing_knows_of_is_refused_by_the_kernel",
    ),
    Safeguard(
        "a handler in a test connects to no real server",
        "gateway/testing/fixtures.py",
        "        with guarding(self._guard):\n            yield\n",
        "        yield\n",
        "tests/integration/test_testing_connections.py::"
        "test_a_handler_that_connects_fails_its_test_with_its_line_and_what_to_do",
    ),
    Safeguard(
        "a rehearsal runs a handler again by a later clock",
        "gateway/testing/rehearse/sandbox.py",
        "later_clock(self._root) if is_later else nullcontext()",
        "nullcontext()",
        "tests/integration/test_rehearse_review.py::test_a_key_that_is_made_of_the_clock_is_found",
    ),
    Safeguard(
        "a rehearsal from which something may have got out does not pass",
        "gateway/cli/rehearsed.py",
        "fine and not report.unguarded for",
        "fine for",
        "tests/unit/test_rehearse_guard.py::test_what_could_not_be_guarded_is_named_and_does_not_pass",
    ),
)


def write_table(page: str) -> str:
    """Return the page with the table of all safeguards and their tests."""
    rows = [f"| {s.name} | `{s.test.partition('::')[2]}` |\n" for s in SAFEGUARDS]
    return TABLE.sub(lambda head: head[1] + "".join(rows), page)


if __name__ == "__main__":
    PAGE.write_text(write_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
