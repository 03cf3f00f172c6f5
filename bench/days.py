"""Drops days as a worker does, and says how long it was at it, without its rests."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from gateway.ledger.connection import connect
from gateway.ledger.partitions import REST_S, tend
from gateway.routes import load_config


async def drop(url: str, days: int) -> dict[str, float]:
    retention = load_config(Path(os.environ["GATEWAY_CONFIG"])).retention
    connection = await connect(url, name="bench days")
    began = time.perf_counter()
    tended = await tend(connection, retention, most=days, rest_s=REST_S)
    took = time.perf_counter() - began - REST_S * max(tended.dropped - 1, 0)
    await connection.close()
    return {"seconds": took, "dropped": tended.dropped, "refiled": tended.refiled}


def main() -> None:
    """python -m bench.days URL DAYS"""
    print(json.dumps(asyncio.run(drop(sys.argv[1], int(sys.argv[2])))))


if __name__ == "__main__":
    main()
