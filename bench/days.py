"""Drops days as a worker does, and says how long it was at it, without its rests."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from gateway.ledger.connection import connect
from gateway.ledger.partitions import tend
from gateway.routes import load_config


async def drop(url: str, days: int, rest_s: float) -> dict[str, float]:
    retention = load_config(Path(os.environ["GATEWAY_CONFIG"])).retention
    connection = await connect(url, name="bench days")
    began = time.perf_counter()
    tended = await tend(connection, retention, most=days, rest_s=rest_s)
    took = time.perf_counter() - began - rest_s * max(tended.dropped - 1, 0)
    await connection.close()
    return {"seconds": took, "dropped": tended.dropped, "refiled": tended.refiled}


def main() -> None:
    """python -m bench.days URL DAYS REST_S"""
    url, days, rest_s = sys.argv[1:]
    print(json.dumps(asyncio.run(drop(url, int(days), float(rest_s)))))


if __name__ == "__main__":
    main()
