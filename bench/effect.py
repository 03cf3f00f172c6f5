"""From the acknowledgement to the committed effect, at a rate that leaves everybody idle."""

import json
from pathlib import Path

from bench.environment import Environment
from bench.figures import Results, Sample, latency_figures
from bench.generator import open_loop, warm_up
from bench.ingest import REQUEST_BYTES
from bench.plan import Plan
from bench.processes import Process, wait_until
from bench.requests import write_stripe
from bench.workers import DEFAULT, TUNED

RATE = 50
OURS = "gateway"
TITLES = {
    OURS: "this gateway",
    TUNED: "textbook, tuned arq worker",
    DEFAULT: "textbook, default arq worker",
}
PATIENCE_S = 60
WARM_ROUNDS = 2


def run(environment: Environment, plan: Plan) -> Results:
    samples: dict[str, Sample] = {}
    with environment.serve() as server, environment.worker() as worker:
        server.wait_ready()
        samples[OURS] = _measure(environment, OURS, server, worker, plan.effect_seconds)
        server.ask_to_end()
    with environment.http_contestant("textbook") as server:
        for name in (TUNED, DEFAULT):
            with environment.worker_contestant(name) as worker:
                server.wait_ready()
                seconds = plan.arq_effect_seconds
                samples[name] = _measure(environment, name, server, worker, seconds)
    return {"rate": RATE, "summary": samples}


def _measure(
    environment: Environment, name: str, server: Process, worker: Process, seconds: int
) -> Sample:
    worker.wait_ready()
    environment.reset()
    _wait_for_effects(environment, warm_up(server.port, WARM_ROUNDS))
    environment.reset()
    sample = _send(environment, server, worker, seconds)
    print(
        f"  {TITLES[name]:<30} p50 {sample['p50_ms']:6.1f}  p99 {sample['p99_ms']:6.1f} ms"
        f"  of {sample['events']:.0f} events",
        flush=True,
    )
    return sample


def _send(environment: Environment, server: Process, worker: Process, seconds: int) -> Sample:
    answers = environment.directory / "answers"
    with environment.requests_file((RATE * seconds + 1) * REQUEST_BYTES) as file:
        write_stripe(file, RATE * seconds + 1)
        before = environment.read_meters(server, worker)
        load = open_loop(server.port, file, rate=RATE, seconds=seconds, answers=answers)
    _wait_for_effects(environment, RATE * seconds)
    spent = environment.read_meters(server, worker).spent_since(before, load["requests"])
    return {
        "events": load["requests"],
        "not_2xx": load["not_2xx"],
        "failed": load["failed"],
        "acknowledge_p50_ms": load["p50_ms"],
        "acknowledge_p99_ms": load["p99_ms"],
        **latency_figures(_waits_ms(environment, answers)),
        **spent,
    }


def _wait_for_effects(environment: Environment, count: int) -> None:
    database = environment.database
    wait_until(lambda: database.count("orders") >= count, PATIENCE_S, "the effects", 0.2)


def _waits_ms(environment: Environment, answers: Path) -> list[float]:
    committed = environment.database.effect_moments_by_id()
    acknowledged: list[tuple[str, float]] = json.loads(answers.read_text())
    return [(committed[event_id] - at) * 1000 for event_id, at in acknowledged]
