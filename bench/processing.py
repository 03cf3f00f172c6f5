"""Processing: one worker process each, a backlog that waits, nothing else running."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.backlog import leave_deliveries, leave_jobs, leave_marks
from bench.environment import Environment
from bench.figures import Results, Sample, rotated, summarize_all
from bench.machine import Reading
from bench.plan import Plan
from bench.processes import BenchFailed, Process
from bench.workers import BARE, DEFAULT, TUNED

WORKER = "gateway"
TITLES = {
    BARE: "bare asyncpg loop, no queue",
    WORKER: "this gateway's worker",
    DEFAULT: "textbook arq worker, defaults",
    TUNED: "textbook arq worker, tuned",
}
POLL_S = 0.1
STALLED_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far a worker was at one moment."""

    done: int
    reading: Reading


def run(environment: Environment, plan: Plan) -> Results:
    samples: dict[str, list[Sample]] = {name: [] for name in TITLES}
    for number in range(plan.processing_rounds):
        for name in rotated(list(TITLES), number):
            sample = _measure(environment, plan, name)
            samples[name].append(sample)
            print(
                f"  round {number + 1}/{plan.processing_rounds}  {TITLES[name]:<30}"
                f" {sample['per_second']:>7,.0f}/s  steal {sample['steal']:3.0%}",
                flush=True,
            )
    return {"samples": samples, "summary": summarize_all(samples)}


def _measure(environment: Environment, plan: Plan, name: str) -> Sample:
    count, leave, start = {
        BARE: (plan.backlog, leave_marks, lambda: environment.module("bench.workers", BARE)),
        WORKER: (plan.backlog, leave_deliveries, environment.worker),
        DEFAULT: (plan.arq_backlog, leave_jobs, lambda: environment.worker_contestant(DEFAULT)),
        TUNED: (plan.tuned_backlog, leave_jobs, lambda: environment.worker_contestant(TUNED)),
    }[name]
    environment.reset()
    leave(environment, count)
    environment.database.execute("vacuum analyze")
    environment.database.execute("checkpoint")
    return _drain(environment, count, start)


def _drain(environment: Environment, count: int, start: Callable[[], Process]) -> Sample:
    with start() as worker:
        looks = watch_effects(environment, worker, count)
    rate = environment.database.effects_per_second()
    return {"per_second": rate, "done": looks[-1].done, **_spent(looks, count)}


def watch_effects(
    environment: Environment, worker: Process, count: int, every_s: float = POLL_S
) -> list[Look]:
    """Looks now and then until every effect is there."""
    looks: list[Look] = []
    moved = time.monotonic()
    while not looks or looks[-1].done < count:
        time.sleep(every_s)
        done = environment.database.count("orders")
        if looks and done > looks[-1].done:
            moved = time.monotonic()
        looks.append(Look(done=done, reading=environment.read_meters(worker)))
        if time.monotonic() - moved > STALLED_S:
            raise BenchFailed(f"{worker.name} stopped at {done} of {count}:\n{worker.log[-2000:]}")
    return looks


def _spent(looks: list[Look], count: int) -> Sample:
    """CPU per delivery in the steady middle, without the start of the process."""
    middle = [look for look in looks if 0.05 * count <= look.done <= 0.95 * count]
    first, last = (middle[0], middle[-1]) if len(middle) > 1 else (looks[0], looks[-1])
    return last.reading.spent_since(first.reading, last.done - first.done)
