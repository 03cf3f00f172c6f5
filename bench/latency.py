"""Latency at 70 % of what each contestant can take, and of one lone sender."""

from pathlib import Path

from bench.contest import (
    GATEWAY,
    PLAIN,
    STARLETTE,
    TEXTBOOK,
    Contestant,
    contestants,
    measure_closed,
)
from bench.environment import Environment
from bench.figures import Results, Sample, rotated, summarize, summarize_all
from bench.generator import open_loop
from bench.ingest import REQUEST_BYTES, tell
from bench.plan import Plan
from bench.requests import write_stripe

SHARE = 0.7
NAMES = (PLAIN, STARLETTE, TEXTBOOK, GATEWAY)
LONE = (STARLETTE, GATEWAY)
LONE_PER_SECOND = 10_000
PROBE_S = 2
PROBE_PER_SECOND = 30_000


def run(environment: Environment, plan: Plan) -> Results:
    with contestants(environment, NAMES) as running:
        maxima = _maxima(environment, plan, running)
        at_load = _at_load(environment, plan, running, maxima)
        commits, alone = _alone(environment, plan, running)
    return {
        "share": SHARE,
        "maxima": maxima,
        "samples": at_load,
        "summary": summarize_all(at_load),
        "alone": alone,
        "alone_summary": summarize_all(alone),
        "commits": commits,
        "commit_summary": summarize(commits),
    }


def measure_commits(environment: Environment, count: int) -> Sample:
    """In a process of its own, while nothing else runs."""
    environment.database.execute("truncate commits")
    with environment.module("bench.commits", str(count)) as process:
        return process.figures(120)


def _maxima(
    environment: Environment, plan: Plan, running: dict[str, Contestant]
) -> dict[str, float]:
    """The closed loop's medians; measured here only where that stage was left out."""
    measured = environment.results.get("ingest")
    if measured is not None:
        return {name: measured["summary"][name]["per_second"] for name in NAMES}
    count = PROBE_S * PROBE_PER_SECOND
    with environment.requests_file(count * REQUEST_BYTES) as file:
        write_stripe(file, count)
        return {
            name: measure_closed(
                environment,
                running[name],
                [file],
                connections=plan.connections,
                seconds=PROBE_S,
            )["per_second"]
            for name in NAMES
        }


def _at_load(
    environment: Environment,
    plan: Plan,
    running: dict[str, Contestant],
    maxima: dict[str, float],
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in NAMES}
    count = int(max(maxima.values()) * SHARE * plan.latency_seconds) + 1
    with environment.requests_file(count * REQUEST_BYTES) as file:
        for number in range(plan.latency_rounds):
            write_stripe(file, count)
            for name in rotated(NAMES, number):
                rate = maxima[name] * SHARE
                sample = _measure_open(environment, running[name], file, rate, plan.latency_seconds)
                samples[name].append(sample)
                tell(f"open loop {number + 1}/{plan.latency_rounds}", name, sample)
    return samples


def _measure_open(
    environment: Environment, contestant: Contestant, file: Path, rate: float, seconds: float
) -> Sample:
    if contestant.table is not None:
        environment.reset()
    before = environment.read_meters(*contestant.processes)
    sample = open_loop(contestant.ports[0], file, rate=rate, seconds=seconds)
    spent = environment.read_meters(*contestant.processes).spent_since(before, sample["requests"])
    return {**sample, **spent}


def _alone(
    environment: Environment, plan: Plan, running: dict[str, Contestant]
) -> tuple[list[Sample], dict[str, list[Sample]]]:
    """One connection, beside what a bare commit costs at that moment."""
    commits: list[Sample] = []
    samples: dict[str, list[Sample]] = {name: [] for name in LONE}
    count = plan.single_seconds * LONE_PER_SECOND
    with environment.requests_file(count * REQUEST_BYTES) as file:
        for number in range(plan.single_rounds):
            commits.append(measure_commits(environment, plan.commits))
            write_stripe(file, count)
            for name in rotated(LONE, number):
                sample = measure_closed(
                    environment, running[name], [file], connections=1, seconds=plan.single_seconds
                )
                samples[name].append(sample)
                tell(f"one connection {number + 1}/{plan.single_rounds}", name, sample)
    return commits, samples
