"""A burst, with everything running: taken without an error, drained without a loss or a repeat."""

import time

from bench.environment import Environment
from bench.figures import Results
from bench.generator import send_all
from bench.ingest import REQUEST_BYTES
from bench.plan import Plan
from bench.processes import Process, wait_until
from bench.requests import write_stripe

DRAIN_S = 600
LAST = "select max(extract(epoch from pg_xact_commit_timestamp(xmin)))::float8 from public.effects"
REPEATED = "select count(*) - count(distinct event_id) from public.effects"
EFFECTS = "public.effects"  # there is one in the schema of the ledger, too
UNFINISHED = "select count(*) from gateway.deliveries where status <> 'done'"


def run(environment: Environment, plan: Plan) -> Results:
    environment.reset()
    count = plan.burst_events
    with (
        environment.serve(GATEWAY_CONFIG="burst.yaml") as server,
        environment.worker(GATEWAY_CONFIG="burst.yaml") as worker,
        environment.requests_file(count * REQUEST_BYTES) as file,
    ):
        server.wait_ready()
        worker.wait_ready()
        write_stripe(file, count)
        load = send_all(server.port, file, plan.connections)
        answered = time.time()
        database = environment.database
        wait_until(lambda: database.count(EFFECTS) >= count, DRAIN_S, "the burst's end", 0.5)
        wait_until(lambda: database.fetchval(UNFINISHED) == 0, DRAIN_S, "the last settlement", 0.1)
        ended = database.fetchval(LAST)
        summary = {
            "events": count,
            "accepted_per_second": load["per_second"],
            "drained_per_second": count / (ended - answered + load["seconds"]),
            "seconds_after_last_answer": max(ended - answered, 0.0),
            "not_2xx": load["not_2xx"],
            "failed": load["failed"],
            "p99_ms": load["p99_ms"],
            "stored": database.count("gateway.processed_events"),
            "effects": database.count(EFFECTS),
            "repeated": database.fetchval(REPEATED),
            "ended_processes": sum(not process.alive for process in (server, worker)),
            "error_lines": _error_lines(server) + _error_lines(worker),
        }
    print(
        f"  {count:,} events: {summary['accepted_per_second']:,.0f}/s accepted,"
        f" {summary['drained_per_second']:,.0f}/s drained,"
        f" empty {summary['seconds_after_last_answer']:.1f} s after the last answer",
        flush=True,
    )
    return {"summary": summary, "clean": is_clean(summary)}


def is_clean(summary: Results) -> bool:
    """Every answer a 2xx, every effect once, no process ended, no error in a log."""
    none = ("not_2xx", "failed", "repeated", "ended_processes", "error_lines")
    counts = {summary["events"], summary["stored"], summary["effects"]}
    return len(counts) == 1 and not any(summary[name] for name in none)


def _error_lines(process: Process) -> int:
    return process.log.count('"level":"error"') + process.log.count("Traceback")
