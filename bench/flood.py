"""A flood of forged requests: what it does to those of a known sender, and what it leaves."""

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.environment import Environment
from bench.figures import Results, Sample, rotated, summarize_all
from bench.generator import HOST, Loading, open_loop, start_open_loop, warm_up
from bench.ingest import REQUEST_BYTES
from bench.plan import Plan
from bench.processes import START_S, Process, wait_until
from bench.requests import any_address, one_address, write_forged, write_stripe

ALONE, AGAIN, ONE, MANY = "alone", "alone again", "one address", "many addresses"
TITLES = {
    ALONE: "good requests alone",
    AGAIN: "alone again: what is noise",
    ONE: "with a flood from one address",
    MANY: "with a flood, each from another address",
}
WRITERS: dict[str, Callable[[], bytes]] = {ONE: one_address, MANY: any_address}
FORGED_PER_SECOND = 50_000 / 60
GOOD_PER_SECOND = 500
SENDER = b"198.51.100.1"
SPARE_S = 4.0
"""By which the flood lasts longer: it begins before what is measured, and ends after it."""
COUNTED = "1s"
SETTLE_S = 2.5
"""In which what was counted is added to the ledger."""
OUTCOMES = {"looked_at": "BAD_SIGNATURE", "not_looked_at": "TOO_MANY_REFUSED"}
ROWS = """
select coalesce(sum((xpath('/row/n/text()',
    query_to_xml(format('select count(*) as n from gateway.%I', tablename), false, true, '')
))[1]::text::bigint), 0)::bigint
from pg_tables where schemaname = 'gateway' and tablename <> all ($1::text[])
"""
OTHER_ROWS = ["migrations", "processed_events", "deliveries"]


def run(environment: Environment, plan: Plan) -> Results:
    samples: dict[str, list[Sample]] = {name: [] for name in TITLES}
    good = int(GOOD_PER_SECOND * plan.flood_seconds) + 1
    forged = int(FORGED_PER_SECOND * (plan.flood_seconds + SPARE_S)) + 1
    with (
        environment.serve(GATEWAY_TRUSTED_PROXIES=HOST, GATEWAY_SWEEP=COUNTED) as server,
        environment.requests_file((good + forged) * REQUEST_BYTES) as file,
    ):
        server.wait_ready()
        warm_up(server.port)
        for number in range(plan.flood_rounds):
            for name in rotated(tuple(TITLES), number):
                write_stripe(file, good, sender=SENDER)
                flood = file.with_name("forged")
                if name in WRITERS:
                    write_forged(flood, forged, WRITERS[name])
                sample = _measure(environment, server, name, file, flood, plan.flood_seconds)
                samples[name].append(sample)
                _tell(f"round {number + 1}/{plan.flood_rounds}", name, sample)
    return {"samples": samples, "summary": summarize_all(samples)}


def _measure(
    environment: Environment, server: Process, name: str, file: Path, flood: Path, seconds: float
) -> Sample:
    environment.reset()
    counted, logged = _outcomes(server.port), len(server.log)
    with _flooding(server.port, name, flood, seconds) as flooding:
        before = environment.read_meters(server)
        sample = open_loop(server.port, file, rate=GOOD_PER_SECOND, seconds=seconds)
        spent = environment.read_meters(server).spent_since(before, sample["requests"])
        forged = 0.0 if flooding is None else flooding.figures(seconds + START_S)["requests"]
    now = _outcomes(server.port)
    log_bytes = len(server.log) - logged
    time.sleep(SETTLE_S)
    return {
        **sample,
        **spent,
        "forged": forged,
        **{name: now[code] - counted[code] for name, code in OUTCOMES.items()},
        "rows": environment.database.fetchval(ROWS, OTHER_ROWS),
        "events": environment.database.count("gateway.processed_events"),
        "log_bytes": log_bytes,
    }


@contextlib.contextmanager
def _flooding(port: int, name: str, flood: Path, seconds: float) -> Iterator[Loading | None]:
    if name not in WRITERS:
        yield None
        return
    lasting, before = seconds + SPARE_S, sum(_outcomes(port).values())
    with start_open_loop(port, flood, rate=FORGED_PER_SECOND, seconds=lasting) as loading:
        wait_until(
            lambda: sum(_outcomes(port).values()) > before + FORGED_PER_SECOND / 2,
            START_S,
            "the flood",
            every_s=0.2,
        )
        yield loading


def _outcomes(port: int) -> dict[str, float]:
    """How many requests each code was answered to, since the process began."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    wanted = {
        f'gateway_requests_total{{outcome="{code}",route="stripe"}}': code
        for code in OUTCOMES.values()
    }
    found = dict.fromkeys(OUTCOMES.values(), 0.0)
    for line in lines:
        metric, _, value = line.rpartition(" ")
        if metric in wanted:
            found[wanted[metric]] = float(value)
    return found


def _tell(what: str, name: str, sample: Sample) -> None:
    errors = sample["not_2xx"] + sample["failed"]
    print(
        f"  {what}  {TITLES[name]:<40} p50 {sample['p50_ms']:6.2f}  p99 {sample['p99_ms']:6.1f} ms"
        f"  steal {sample['steal']:3.0%}  forged {sample['forged']:,.0f}"
        f"  rows {sample['rows']:.0f}" + (f"  ERRORS {errors:.0f}" if errors else ""),
        flush=True,
    )
