"""Events straight into the ledger, in the gateway's own batches: a backlog, and contestant (e)."""

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import uvloop

from bench.figures import Sample, latency_figures
from bench.requests import TYPE, stripe_body
from gateway.base.model import Envelope
from gateway.ledger.claims import Claim, Claimer

IN_FLIGHT = 128
"""Two full batches: one under way, one waiting."""
HANDLER = "orders.fulfil"
DIGEST = bytes(32)
HEADERS = {
    "host": "bench",
    "content-type": "application/json",
    "stripe-signature": f"t=1700000000,v1={'0' * 64}",
    "content-length": "2852",
}


def make_claims() -> Iterator[Claim]:
    """As `serve` makes them of verified requests, with new ids."""
    body = b"evt_".join(stripe_body())
    occurred_at = datetime.now(UTC).replace(microsecond=0)
    while True:
        yield Claim(
            route="stripe",
            provider="stripe",
            envelope=Envelope(
                id=f"evt_{uuid4().hex}", type=TYPE, livemode=False, occurred_at=occurred_at
            ),
            received_at=datetime.now(UTC),
            digest=DIGEST,
            headers=HEADERS,
            body=body,
            repeats=None,
            handlers=(HANDLER,),
        )


async def claim_events(url: str, count: int) -> None:
    """A backlog of deliveries that nobody was told of."""
    await _claim(url, itertools.islice(make_claims(), count), until=None)


async def _claim(url: str, claims: Iterator[Claim], until: float | None) -> list[float]:
    latencies_ms: list[float] = []

    async def claim_on() -> None:
        for claim in claims:
            began = time.perf_counter()
            if until is not None and began >= until:
                return
            await claimer.claim(claim)
            latencies_ms.append((time.perf_counter() - began) * 1000)

    claimer = Claimer(url, on_accepted=lambda _: None)
    await claimer.start()
    try:
        await asyncio.gather(*(claim_on() for _ in range(IN_FLIGHT)))
    finally:
        await claimer.stop()
    return latencies_ms


async def measure(url: str, seconds: float) -> Sample:
    """Claims for so many seconds, one connection per flusher, no HTTP."""
    spent, began = time.process_time(), time.perf_counter()
    latencies_ms = await _claim(url, make_claims(), began + seconds)
    took = time.perf_counter() - began
    count = len(latencies_ms)
    return {
        "per_second": count / took,
        "requests": count,
        "seconds": took,
        **latency_figures(latencies_ms),
        "not_2xx": 0,
        "failed": 0,
        "own_cpu_us": (time.process_time() - spent) * 1e6 / count,
    }


def main() -> None:
    """python -m bench.claims SECONDS"""
    print(json.dumps(uvloop.run(measure(os.environ["BENCH_DATABASE_URL"], float(sys.argv[1])))))


if __name__ == "__main__":
    main()
