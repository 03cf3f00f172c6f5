"""Everything at once on the same cores: what is accepted, and what is processed meanwhile."""

import time

from bench.environment import Environment
from bench.figures import Results
from bench.generator import closed_loop
from bench.ingest import REQUEST_BYTES
from bench.plan import Plan
from bench.requests import write_stripe

FASTEST_PER_SECOND = 16_000


def run(environment: Environment, plan: Plan) -> Results:
    environment.reset()
    seconds = plan.combined_seconds
    count = seconds * FASTEST_PER_SECOND
    with (
        environment.serve() as server,
        environment.worker() as worker,
        environment.requests_file(count * REQUEST_BYTES) as file,
    ):
        server.wait_ready()
        worker.wait_ready()
        write_stripe(file, count)
        before = environment.read_meters(server, worker)
        load = closed_loop([server.port], [file], plan.connections, seconds)
        ended = time.time()
        spent = environment.read_meters(server, worker).spent_since(before, load["requests"])
        moments = environment.database.effect_moments()
    began = ended - load["seconds"]
    processed = sum(began <= moment <= ended for moment in moments) / load["seconds"]
    print(
        f"  {load['per_second']:,.0f}/s accepted, {processed:,.0f}/s processed in the same"
        f" {seconds} s",
        flush=True,
    )
    return {"summary": {**load, **spent, "processed_per_second": processed}}
