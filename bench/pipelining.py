"""Ten clients that pipeline GET /healthz without a pause: what they do to memory and to others.

The same good requests are measured beside ten well-behaved clients, which send GET /healthz one at
a time and as fast as they are answered. Both keep `serve` busy all the time.
"""

import sys
import time
from pathlib import Path

from bench.environment import Environment
from bench.figures import Results, Sample, rotated, summarize_all
from bench.generator import Loading, open_loop, warm_up
from bench.ingest import REQUEST_BYTES
from bench.machine import peak_bytes
from bench.plan import Plan
from bench.processes import START_S
from bench.requests import write_stripe

WELL_BEHAVED, PIPELINING = "well-behaved", "pipelining"
TITLES = {
    WELL_BEHAVED: "ten well-behaved clients, as fast as they are answered",
    PIPELINING: "ten clients that pipeline, 1 MB/s each",
}
CONNECTIONS = 10
BYTES_PER_SECOND = 1_000_000
GOOD_PER_SECOND = 200
LEAD_S = 2.0
"""The clients begin before what is measured, and end after it."""


def run(environment: Environment, plan: Plan) -> Results:
    samples: dict[str, list[Sample]] = {name: [] for name in TITLES}
    seconds = plan.pipelining_seconds
    good = int(GOOD_PER_SECOND * seconds) + 1
    with environment.requests_file(good * REQUEST_BYTES) as file:
        for number in range(plan.pipelining_rounds):
            for name in rotated(tuple(TITLES), number):
                write_stripe(file, good)
                sample = _measure(environment, name, file, seconds)
                samples[name].append(sample)
                _tell(f"round {number + 1}/{plan.pipelining_rounds}", name, sample)
    return {"seconds": seconds, "samples": samples, "summary": summarize_all(samples)}


def _measure(environment: Environment, name: str, file: Path, seconds: float) -> Sample:
    """With a `serve` of its own, so that its peak of memory is that of this load."""
    environment.reset()
    with environment.serve() as server:
        server.wait_ready()
        warm_up(server.port)
        memory = server.rss_bytes
        lasting = seconds + 2 * LEAD_S
        command = [sys.executable, "-m", "bench.healthz", str(server.port)]
        command += ["--connections", str(CONNECTIONS), "--seconds", str(lasting)]
        command += ["--pipeline", str(BYTES_PER_SECOND)] if name == PIPELINING else []
        with Loading(command, file) as clients:
            time.sleep(LEAD_S)
            before = environment.read_meters(server)
            sample = open_loop(server.port, file, rate=GOOD_PER_SECOND, seconds=seconds)
            spent = environment.read_meters(server).spent_since(before, sample["requests"])
            others = clients.figures(lasting + START_S)
        return {
            **sample,
            **spent,
            "healthz_per_second": others["per_second"],
            "sent_bytes": others["sent_bytes"],
            "closed": others["closed"],
            "growth_bytes": peak_bytes(server.pid) - memory,
        }


def _tell(what: str, name: str, sample: Sample) -> None:
    errors = sample["not_2xx"] + sample["failed"]
    print(
        f"  {what}  {TITLES[name]:<55} p50 {sample['p50_ms']:6.2f}  p99 {sample['p99_ms']:6.1f} ms"
        f"  healthz {sample['healthz_per_second']:6,.0f}/s"
        f"  memory +{sample['growth_bytes'] / 1024**2:.1f} MiB  steal {sample['steal']:3.0%}"
        + (f"  closed {sample['closed']:.0f}" if sample["closed"] else "")
        + (f"  ERRORS {errors:.0f}" if errors else ""),
        flush=True,
    )
