"""Drops days as a worker does, and says how long it was at it, without its rests."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from gateway.config.routes import load_config
from gateway.ledger.connection import connect
from gateway.ledger.partitions import tend


async def drop(url: str, days: int, bytes_per_s: float) -> dict[str, float]:
    retention = load_config(Path(os.environ["GATEWAY_CONFIG"])).retention
    connection = await connect(url, name="bench days")
    began = time.perf_counter()
    tended = await tend(connection, retention, most=days, bytes_per_s=bytes_per_s)
    took = time.perf_counter() - began - tended.rested_s
    await connection.close()
    return {"seconds": took, "dropped": tended.dropped, "refiled": tended.refiled}


def main() -> None:
    """python -m bench.days URL DAYS BYTES_PER_SECOND"""
    url, days, bytes_per_s = sys.argv[1:]
    print(json.dumps(asyncio.run(drop(url, int(days), float(bytes_per_s)))))


if __name__ == "__main__":
    main()
