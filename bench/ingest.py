"""Ingest, side by side: contestants take turns, so that noise hits all of them alike."""

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from bench.contest import (
    AGAIN,
    EVENTS,
    GATEWAY,
    PAIR,
    PLAIN,
    POSTGRES,
    STARLETTE,
    TEXTBOOK,
    TITLES,
    Contestant,
    contestants,
    measure_closed,
)
from bench.environment import Environment
from bench.figures import Results, Sample, rotated, summarize_all
from bench.plan import Plan
from bench.processes import BenchFailed
from bench.requests import GITHUB_BYTES, write_duplicates, write_github, write_stripe

HTTP = (PLAIN, STARLETTE, AGAIN, TEXTBOOK, GATEWAY, PAIR)
ORDER = (*HTTP, POSTGRES)
MIXES: dict[str, tuple[Callable[[Path, int], None], int, int]] = {
    "20 % duplicates": (write_duplicates, 20_000, 3_100),
    "25 KB GitHub pushes": (write_github, 8_000, GITHUB_BYTES + 1_000),
}
"""Who writes the requests, how many a second are enough, and how large one is at most."""
FASTEST_PER_SECOND = 25_000
"""Requests signed for the first round; the later ones know better."""
MARGIN = 2
REQUEST_BYTES = 3_100
NEW_IN_MIX = 0.79
"""The least share of new ids in any mix."""


def run(environment: Environment, plan: Plan) -> Results:
    samples = _rounds(environment, plan)
    mixes = _mixes(environment, plan) if plan.mix_rounds else {}
    return {
        "samples": samples,
        "summary": summarize_all(samples),
        "mixes": mixes,
        "mix_summary": {mix: summarize_all(found) for mix, found in mixes.items()},
    }


def _rounds(environment: Environment, plan: Plan) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in ORDER}
    most = plan.ingest_seconds * FASTEST_PER_SECOND
    with (
        environment.requests_file(2 * most * REQUEST_BYTES) as file,
        contextlib.closing(_sittings(environment, plan, HTTP, plan.ingest_rounds)) as sittings,
    ):
        for running, number in sittings:
            seen = [sample["requests"] for name in HTTP for sample in samples[name]]
            count = int(max(seen) * MARGIN) if seen else most
            files = _write(file, count, len(running[PAIR].ports))
            for name in rotated(ORDER, number):
                sample = (
                    _measure_postgres(environment, plan.raw_seconds)
                    if name == POSTGRES
                    else measure_closed(
                        environment,
                        running[name],
                        files,
                        connections=plan.connections,
                        seconds=plan.ingest_seconds,
                    )
                )
                samples[name].append(_checked(name, sample))
                tell(f"round {number + 1}/{plan.ingest_rounds}", name, sample)
    return samples


def _write(file: Path, count: int, generators: int) -> list[Path]:
    """A file for each generator. Every contestant gets the same bytes, none gets them twice."""
    files = [file.with_name(f"requests{number}") for number in range(generators)]
    for each in files:
        write_stripe(each, count // (1 if each == files[0] else 2))
    return files


def _mixes(environment: Environment, plan: Plan) -> dict[str, dict[str, list[Sample]]]:
    names = (STARLETTE, GATEWAY)
    samples: dict[str, dict[str, list[Sample]]] = {
        mix: {name: [] for name in names} for mix in MIXES
    }
    sittings = _sittings(environment, plan, names, plan.mix_rounds)
    with contextlib.closing(sittings):
        for running, number in sittings:
            for mix in MIXES:
                with _mix_requests(environment, plan, mix) as file:
                    for name in rotated(names, number):
                        sample = _measure_mix(environment, plan, running[name], file)
                        samples[mix][name].append(sample)
                        tell(f"{mix} {number + 1}/{plan.mix_rounds}", name, sample)
    return samples


@contextlib.contextmanager
def _mix_requests(environment: Environment, plan: Plan, mix: str) -> Iterator[Path]:
    write, per_second, size = MIXES[mix]
    count = plan.mix_seconds * per_second
    with environment.requests_file(count * size) as file:
        write(file, count)
        yield file


def _measure_mix(
    environment: Environment, plan: Plan, contestant: Contestant, file: Path
) -> Sample:
    connections, seconds = plan.connections, plan.mix_seconds
    sample = measure_closed(
        environment, contestant, [file], connections=connections, seconds=seconds
    )
    return _checked(contestant.name, sample, NEW_IN_MIX)


def _sittings(
    environment: Environment, plan: Plan, names: tuple[str, ...], rounds: int
) -> Generator[tuple[dict[str, Contestant], int], None, None]:
    """Each round with the processes to measure: new ones each time, or the same throughout."""
    for first in range(rounds) if plan.fresh_processes else [0]:
        with contestants(environment, names) as running:
            for number in [first] if plan.fresh_processes else range(rounds):
                yield running, number


def _measure_postgres(environment: Environment, seconds: float) -> Sample:
    environment.reset()
    before = environment.read_meters()
    with environment.module("bench.claims", str(seconds)) as process:
        sample = process.figures(seconds + 60)
    spent = environment.read_meters().spent_since(before, sample["requests"])
    return {**spent, **sample, "stored": environment.database.count(EVENTS)}


def _checked(name: str, sample: Sample, new: float = 1.0) -> Sample:
    """Fewer events than answers would mean duplicates: a measurement of something else."""
    if "stored" in sample and sample["stored"] < (sample["requests"] - sample["not_2xx"]) * new:
        raise BenchFailed(
            f"{name}: {sample['requests']:.0f} answers, {sample['stored']:.0f} events"
        )
    return sample


def tell(what: str, name: str, sample: Sample) -> None:
    """A line of progress."""
    errors = sample["not_2xx"] + sample["failed"]
    print(
        f"  {what}  {TITLES[name]:<35} {sample['per_second']:>7,.0f}/s"
        f"  p50 {sample['p50_ms']:6.2f}  p99 {sample['p99_ms']:6.1f} ms"
        f"  steal {sample['steal']:3.0%}" + (f"  ERRORS {errors:.0f}" if errors else ""),
        flush=True,
    )
