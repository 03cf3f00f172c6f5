"""What size does: a ledger of millions, a backlog that nobody works on, pruning under load."""

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from bench.database import Database
from bench.environment import Environment
from bench.figures import Results, Sample, round_ratios, summarize_all
from bench.fill import fill
from bench.generator import OVERTIME_S, closed_loop, send_all, start_closed_loop
from bench.ingest import REQUEST_BYTES
from bench.plan import Plan
from bench.processes import Process
from bench.processing import watch_effects
from bench.requests import write_stripe

FASTEST_PER_SECOND = 12_000
"""What `serve` is taken to accept at most, where no earlier stage has measured it."""
MARGIN = 2
MONTH = timedelta(days=30)
EXPIRED = timedelta(days=60)
"""Longer ago than the route keeps keys."""
PRUNE_RATIO = 1.2
PACE = 1.05
"""The pace set for pruning is a little higher than the ratio wanted: steps are coarse."""
CHUNK = 50_000
FAR = 1_000
ORDER = """
select max(abs(moved)) as furthest, avg((abs(moved) > $1)::int)::float8 as far_share
from (
    select row_number() over (order by finished_at, id) - row_number() over (order by id) as moved
    from gateway.deliveries
) as places
"""


def run(environment: Environment, plan: Plan) -> Results:
    return {
        "ledger": measure_ledger(environment, plan),
        "waiting": measure_waiting(environment, plan),
        "pruning": measure_pruning(environment, plan),
    }


def measure_ledger(environment: Environment, plan: Plan) -> Results:
    """Ingest into an empty and into a full ledger by turns, each run with two checkpoints in it."""
    with _full_ledger(environment, plan) as full:
        samples: dict[str, list[Sample]] = {"empty": [], "full": []}
        for number in range(plan.growth_rounds):
            for name, database in (("empty", environment.database), ("full", full)):
                environment.reset()
                sample = _ingest_with_checkpoints(environment, plan, database)
                samples[name].append(sample)
                _tell(f"{name} ledger {number + 1}/{plan.growth_rounds}", sample)
    return {
        "events": plan.ledger_events,
        "samples": samples,
        "summary": summarize_all(samples),
        "ratios": round_ratios(samples, "full", "empty"),
    }


def measure_waiting(environment: Environment, plan: Plan) -> Results:
    """No worker at first; then one that finds everything."""
    environment.reset()
    redis_before = environment.redis_info("memory")["used_memory"]
    with environment.serve() as server:
        server.wait_ready()
        _send(environment, plan, server, plan.waiting_first)
        serve_first = server.rss_bytes
        accepted = _send(environment, plan, server, plan.waiting_events - plan.waiting_first)
        serve_last = server.rss_bytes
    redis_after = environment.redis_info("memory")["used_memory"]
    _tell(f"{plan.waiting_events:,} events without a worker", accepted)
    with environment.worker() as worker:
        watch_effects(environment, worker, plan.waiting_first)
        worker_first = worker.rss_bytes
        watch_effects(environment, worker, plan.waiting_events, every_s=1)
        worker_last = worker.rss_bytes
    drained = environment.database.effects_per_second()
    order = environment.database.fetch(ORDER, FAR)[0]
    print(f"  drained at {drained:,.0f}/s, furthest out of place: {order['furthest']}", flush=True)
    return {
        "events": plan.waiting_events,
        "first": plan.waiting_first,
        "accepted_per_second": accepted["per_second"],
        "serve_rss": [serve_first, serve_last],
        "worker_rss": [worker_first, worker_last],
        "redis_bytes": [redis_before, redis_after],
        "drained_per_second": drained,
        "furthest_out_of_place": order["furthest"],
        "far_out_of_place_share": order["far_share"],
    }


def measure_pruning(environment: Environment, plan: Plan) -> Results:
    """Ingest with and without pruning beside it, on a ledger with plenty to forget."""
    environment.reset()
    seconds = plan.prune_seconds
    expired = int(_expected_rate(environment) * PRUNE_RATIO * seconds * (plan.growth_rounds + 1))
    print(f"  filling {expired:,} expired events", flush=True)
    fill(environment.database, expired, since=EXPIRED, over=timedelta(days=1))
    samples: dict[str, list[Sample]] = {"alone": [], "pruning": []}
    with environment.serve() as server:
        server.wait_ready()
        for number in range(plan.growth_rounds):
            alone = _ingest(environment, plan, server)
            pace = alone["per_second"] * PRUNE_RATIO * PACE
            pruning = _ingest(environment, plan, server, pace)
            for name, sample in (("alone", alone), ("pruning", pruning)):
                samples[name].append(sample)
                _tell(f"{name} {number + 1}/{plan.growth_rounds}", sample)
    return {
        "samples": samples,
        "summary": summarize_all(samples),
        "ratios": round_ratios(samples, "pruning", "alone"),
        "prune_ratios": [s["pruned_per_second"] / s["per_second"] for s in samples["pruning"]],
    }


@contextlib.contextmanager
def _full_ledger(environment: Environment, plan: Plan) -> Iterator[Database]:
    def tell(filled: int) -> None:
        if filled % 500_000 == 0:
            print(f"  {filled:,} events filled, {time.monotonic() - began:.0f} s", flush=True)

    full = environment.add_database("full")
    try:
        began = time.monotonic()
        environment.put_off_checkpoints("4GB")  # so that filling is not all checkpoints
        fill(
            full,
            plan.ledger_events,
            since=MONTH,
            over=MONTH,
            bodies=plan.ledger_bodies,
            tell=tell,
        )
        environment.put_off_checkpoints(None)
        yield full
    finally:
        full.close()
        environment.database.execute('drop database "full" with (force)')


def _ingest_with_checkpoints(environment: Environment, plan: Plan, database: Database) -> Sample:
    seconds = plan.ledger_seconds
    with (
        environment.serve(GATEWAY_DATABASE_URL=database.url) as server,
        _requests(environment, seconds) as file,
    ):
        server.wait_ready()
        before = environment.read_meters(server)
        with start_closed_loop(server.port, file, plan.connections, seconds) as load:
            for _ in range(2):
                time.sleep(seconds / 3)
                environment.database.execute("checkpoint")
            sample = load.figures(seconds + OVERTIME_S)
        spent = environment.read_meters(server).spent_since(before, sample["requests"])
    return {**sample, **spent}


def _ingest(
    environment: Environment, plan: Plan, server: Process, prune_pace: float | None = None
) -> Sample:
    """With a process beside it that prunes so many keys a second, or without."""
    with _requests(environment, plan.prune_seconds) as file, contextlib.ExitStack() as beside:
        environment.database.execute("checkpoint")
        pruner = None
        if prune_pace is not None:
            pruner = environment.module("bench.prune", str(prune_pace), ready_line="pruning")
            beside.enter_context(pruner).wait_ready()
        before = environment.read_meters(server)
        sample = closed_loop([server.port], [file], plan.connections, plan.prune_seconds)
        sample |= environment.read_meters(server).spent_since(before, sample["requests"])
        if pruner is not None:
            pruner.ask_to_end()
            sample["pruned_per_second"] = pruner.figures(OVERTIME_S)["per_second"]
    return sample


def _send(environment: Environment, plan: Plan, server: Process, count: int) -> Sample:
    """Exactly so many, in files of a bearable size."""
    requests = seconds = errors = 0.0
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        with environment.requests_file(size * REQUEST_BYTES) as file:
            write_stripe(file, size)
            sample = send_all(server.port, file, plan.connections)
        requests += sample["requests"]
        seconds += sample["seconds"]
        errors += sample["not_2xx"] + sample["failed"]
    return {"per_second": requests / seconds, "requests": requests, "not_2xx": errors}


@contextlib.contextmanager
def _requests(environment: Environment, seconds: int) -> Iterator[Path]:
    count = int(_expected_rate(environment) * MARGIN * seconds)
    with environment.requests_file(count * REQUEST_BYTES) as file:
        write_stripe(file, count)
        yield file


def _expected_rate(environment: Environment) -> float:
    measured = environment.results.get("ingest")
    if measured is None:
        return FASTEST_PER_SECOND
    rate: float = measured["summary"]["gateway"]["highest"]
    return rate


def _tell(what: str, sample: Sample) -> None:
    print(f"  {what:<40} {sample['per_second']:>7,.0f}/s", flush=True)
