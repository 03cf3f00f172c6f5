"""Prunes as a worker does, but at a given pace, until it is ended."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import uvloop

from gateway.config.routes import load_config
from gateway.ledger.connection import PREPARED_ONCE, open_pool
from gateway.ledger.retention import Pruner

COMMAND_S = 30.0


async def prune(url: str, per_second: float) -> dict[str, float]:
    """Step by step; behind its pace it does not rest."""
    routes = load_config(Path(os.environ["GATEWAY_CONFIG"])).routes
    pruner = Pruner({route.name: route.retention for route in routes})
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    pool = await open_pool(
        url, name="bench prune", size=1, command_timeout_s=COMMAND_S, **PREPARED_ONCE
    )
    print("pruning", flush=True)
    keys, began = 0, time.perf_counter()
    while not ended.is_set():
        async with pool.acquire() as connection:
            keys += (await pruner.step(connection)).keys
        ahead_s = keys / per_second - (time.perf_counter() - began)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), max(ahead_s, 0))
    took = time.perf_counter() - began
    await pool.close()
    return {"pruned": keys, "seconds": took, "per_second": keys / took}


def main() -> None:
    """python -m bench.prune KEYS_PER_SECOND"""
    print(json.dumps(uvloop.run(prune(os.environ["BENCH_DATABASE_URL"], float(sys.argv[1])))))


if __name__ == "__main__":
    main()
