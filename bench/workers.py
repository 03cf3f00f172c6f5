"""What `gateway worker` is measured against: arq as it comes, arq tuned, a bare asyncpg loop."""

import asyncio
import json
import logging.config
import os
import sys
from datetime import UTC, datetime
from typing import Any

import asyncpg
import uvloop
from arq.connections import RedisSettings
from arq.logs import default_log_config
from arq.worker import Worker

BARE, DEFAULT, TUNED = "bare", "arq", "arq tuned"
UPSERT = os.environ.get("BENCH_UPSERT", "")
"""The gateway's own statement, handed in: importing the gateway takes longer than the start."""
SLOTS = 16
"""As many as `gateway worker` has by default."""
MARK = "update marks set status = 'done', finished_at = now() where id = $1"
PROCESSED = "update textbook set processed_at = now() where event_id = $1"
TUNING: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    TUNED: {"poll_delay": 0.01, "max_jobs": 100, "keep_result": 0},
}


async def handle(ctx: dict[str, Any], event_id: str) -> None:
    """The textbook's job: read the event, apply it, mark it, all in one transaction."""
    async with ctx["pool"].acquire() as connection, connection.transaction():
        body = await connection.fetchval("select body from textbook where event_id = $1", event_id)
        event = json.loads(body)
        occurred_at = datetime.fromtimestamp(event["created"], UTC)
        amount = event["data"]["object"]["amount"]
        await connection.fetchval(UPSERT, event_id, "paid", amount, occurred_at)
        await connection.execute(PROCESSED, event_id)


async def open_pool(ctx: dict[str, Any]) -> None:
    ctx["pool"] = await asyncpg.create_pool(os.environ["BENCH_DATABASE_URL"], max_size=SLOTS)


async def close_pool(ctx: dict[str, Any]) -> None:
    await ctx["pool"].close()


def run_arq(name: str) -> None:
    """As the `arq` command runs it, logs included: the gateway's worker logs too."""
    logging.config.dictConfig(default_log_config(verbose=False))
    if name == TUNED:
        uvloop.install()
    worker = Worker(
        functions=[handle],
        redis_settings=RedisSettings(unix_socket_path=os.environ["BENCH_REDIS_SOCKET"]),
        on_startup=open_pool,
        on_shutdown=close_pool,
        **TUNING[name],
    )
    worker.run()


async def run_bare(url: str) -> None:
    """Begin, upsert, mark, commit at the same concurrency: the least that the work can cost."""
    connections = [await asyncpg.connect(url) for _ in range(SLOTS)]
    waiting = await connections[0].fetch("select id, event_id from marks order by id desc")
    occurred_at = datetime.now(UTC)

    async def work(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        while waiting:
            mark, event_id = waiting.pop()
            async with connection.transaction():
                await connection.fetchval(UPSERT, event_id, "paid", 1999, occurred_at)
                await connection.execute(MARK, mark)

    await asyncio.gather(*(work(connection) for connection in connections))


def main() -> None:
    """python -m bench.workers NAME"""
    if sys.argv[1] == BARE:
        uvloop.run(run_bare(os.environ["BENCH_DATABASE_URL"]))
    else:
        run_arq(sys.argv[1])


if __name__ == "__main__":
    main()
