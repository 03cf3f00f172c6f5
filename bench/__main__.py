"""Measures the gateway beside what it could be, in one run, and says which targets it meets."""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from bench import (
    burst,
    combined,
    console,
    effect,
    flood,
    growth,
    ingest,
    latency,
    pipelining,
    processing,
    retention,
)
from bench.chart import draw
from bench.environment import RESULTS, ROOT, Environment, open_environment
from bench.figures import Results
from bench.machine import describe_machine
from bench.page import PAGE, write_figures
from bench.plan import FULL, QUICK, Plan
from bench.processes import BenchFailed
from bench.report import machine_line, print_report
from bench.targets import Target, check_targets

STAGES: dict[str, Callable[[Environment, Plan], Results]] = {
    "ingest": ingest.run,
    "latency": latency.run,
    "processing": processing.run,
    "effect": effect.run,
    "burst": burst.run,
    "combined": combined.run,
    "flood": flood.run,
    "pipelining": pipelining.run,
    "growth": growth.run,
    "retention": retention.run,
    "console": console.run,
}
FULL_ONLY = ("growth", "retention", "console")
COMMITS = 200
LATEST = "latest"
FAILURES = (BenchFailed, asyncpg.PostgresError, OSError, subprocess.SubprocessError)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three minutes instead of fifty")
    parser.add_argument(
        "--only", nargs="+", choices=STAGES, metavar="STAGE", help=", ".join(STAGES)
    )
    parser.add_argument(
        "--add", action="store_true", help="add what --only measures to the last full run's results"
    )
    parser.add_argument("--connections", type=int, default=FULL.connections)
    parser.add_argument(
        "--redraw", action="store_true", help="only make chart and page anew from latest.json"
    )
    options = parser.parse_args()
    if options.redraw:
        _show(_latest(), LATEST)
        sys.exit()
    if options.add and (options.quick or not options.only):
        parser.error("--add goes with --only, and not with --quick")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    plan = replace(QUICK if options.quick else FULL, connections=options.connections)
    wanted = options.only or [
        stage for stage in STAGES if not (options.quick and stage in FULL_ONLY)
    ]
    document = measure(plan, wanted)
    print_report(document, _judge(document))
    if options.add and not document["failed"]:
        document = added(_latest(), document)
        _judge(document)
        _write(document, LATEST)
    else:
        _write(document, _result_name(options))
    sys.exit(1 if document["failed"] else 0)


def measure(plan: Plan, wanted: Sequence[str]) -> Results:
    """One stage after the other; one that fails does not cost the others their results."""
    failed: dict[str, str] = {}
    with open_environment() as environment:
        machine = _machine(environment)
        print(machine_line(machine), flush=True)
        for stage in [stage for stage in STAGES if stage in wanted]:
            began = time.monotonic()
            print(f"\n{stage}", flush=True)
            try:
                environment.results[stage] = STAGES[stage](environment, plan)
            except FAILURES as problem:
                failed[stage] = str(problem)
                print(f"  FAILED: {problem}", flush=True)
            print(f"  {time.monotonic() - began:.0f} s", flush=True)
        return {
            "mode": plan.mode,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "machine": machine,
            "connections": plan.connections,
            "stages": environment.results,
            "skipped": _skipped(plan, wanted),
            "failed": failed,
        }


def _skipped(plan: Plan, wanted: Sequence[str]) -> list[str]:
    skipped = [stage for stage in STAGES if stage not in wanted]
    if "ingest" in wanted and not plan.mix_rounds:
        skipped.append("ingest of duplicates and of GitHub's large payloads")
    return skipped


def _machine(environment: Environment) -> Results:
    server = environment.redis_info("server")
    version = server.get("valkey_version", server["redis_version"])
    return {
        **describe_machine(),
        "postgres": f"Postgres {environment.database.fetchval('show server_version')}",
        "redis": f"{server.get('server_name', 'redis').capitalize()} {version}",
        "commit_p50_ms": latency.measure_commits(environment, COMMITS)["p50_ms"],
    }


def _commit() -> str | None:
    """Of the code that was measured; with a plus where it was changed since."""
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    with contextlib.suppress(OSError):
        found = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    return None


def _result_name(options: argparse.Namespace) -> str:
    """Results of some stages never take the place of those of all."""
    if options.only:
        return "partial"
    return "quick" if options.quick else LATEST


def _write(document: Results, name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    written = [file, *_show(document, name)]
    print(f"\nWritten: {', '.join(str(file.relative_to(ROOT)) for file in written)}")


def _latest() -> Results:
    try:
        document: Results = json.loads((RESULTS / f"{LATEST}.json").read_text())
    except FileNotFoundError:
        sys.exit("there are no results of a full run yet: run `make bench`")
    return document


def _judge(document: Results) -> list[Target]:
    targets = check_targets(document["stages"])
    document["targets"] = [target.as_json() for target in targets]
    return targets


def added(latest: Results, more: Results) -> Results:
    """A stage that is new need not wait for the next full run; it says itself when it was run."""
    run = {name: more[name] for name in ("date", "commit", "machine")}
    return {
        **latest,
        "stages": {**latest["stages"], **more["stages"]},
        "added": {**latest.get("added", {}), **dict.fromkeys(more["stages"], run)},
    }


def _show(document: Results, name: str) -> list[Path]:
    """The chart, and of a full run the page too."""
    chart = RESULTS / f"{name}.svg"
    chart.write_text(draw(document))
    if name != LATEST:
        return [chart]
    write_figures(document)
    return [chart, PAGE]


if __name__ == "__main__":
    main()
