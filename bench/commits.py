"""What one bare commit costs: one connection, one row of an event's size, nothing else."""

import asyncio
import json
import os
import sys
import time
from uuid import uuid4

import asyncpg

from bench.figures import Sample, latency_figures

BODY_BYTES = 2_850
"""As large as the events of the other measurements."""


async def measure(url: str, count: int) -> Sample:
    body = os.urandom(BODY_BYTES)
    connection = await asyncpg.connect(url)
    insert = await connection.prepare("insert into commits (event_id, body) values ($1, $2)")
    latencies_ms = []
    for _ in range(count):
        event_id = f"evt_{uuid4().hex}"
        began = time.perf_counter()
        await insert.fetch(event_id, body)
        latencies_ms.append((time.perf_counter() - began) * 1000)
    await connection.close()
    return latency_figures(latencies_ms)


def main() -> None:
    """python -m bench.commits COUNT"""
    print(json.dumps(asyncio.run(measure(os.environ["BENCH_DATABASE_URL"], int(sys.argv[1])))))


if __name__ == "__main__":
    main()
