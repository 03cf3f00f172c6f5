"""What the gateway is measured against, each under the same uvicorn as `gateway serve`."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import uvicorn
import uvloop
from arq.connections import RedisSettings, create_pool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bench.requests import GITHUB_PATH, SECRET, STRIPE_PATH
from gateway.http.listening import BACKLOG
from gateway.processes.serve import KEEP_ALIVE_S
from gateway.providers import PROVIDERS, Incoming

POOL = 10
INSERT = "insert into textbook (event_id, type, body) values ($1, $2, $3) on conflict do nothing"


def verify(headers: dict[str, str], body: bytes, provider: str = "stripe") -> None:
    PROVIDERS[provider].verify(
        Incoming(headers, body),
        keys=[SECRET],
        now=datetime.now(UTC),
        tolerance=timedelta(minutes=5),
    )


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    """(a) ASGI and HMAC, and nothing else."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    verify({k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}, body)
    headers = [(b"content-length", b"15")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"status":"ok"}'})


def starlette() -> Starlette:
    """(b) A Starlette route with HMAC and json, no database."""

    async def stripe(request: Request) -> JSONResponse:
        body = await request.body()
        verify(dict(request.headers), body)
        return JSONResponse({"status": "accepted", "event_id": json.loads(body)["id"]})

    async def github(request: Request) -> JSONResponse:
        body = await request.body()
        verify(dict(request.headers), body, "github")
        account = json.loads(body)["organization"]["login"]
        event_id = request.headers["x-github-delivery"]
        return JSONResponse({"status": "accepted", "event_id": event_id, "account": account})

    return Starlette(
        routes=[
            Route(STRIPE_PATH, stripe, methods=["POST"]),
            Route(GITHUB_PATH, github, methods=["POST"]),
        ]
    )


def textbook() -> Starlette:
    """(c) One INSERT ... ON CONFLICT and one enqueue_job per request."""
    state: dict[str, Any] = {}

    @asynccontextmanager
    async def open_pools(_: Starlette) -> AsyncIterator[None]:
        state["pool"] = await asyncpg.create_pool(os.environ["BENCH_DATABASE_URL"], max_size=POOL)
        state["arq"] = await create_pool(
            RedisSettings(unix_socket_path=os.environ["BENCH_REDIS_SOCKET"])
        )
        yield

    async def receive(request: Request) -> JSONResponse:
        body = await request.body()
        verify(dict(request.headers), body)
        event = json.loads(body)
        status = await state["pool"].execute(INSERT, event["id"], event["type"], body)
        if status == "INSERT 0 1":
            await state["arq"].enqueue_job("handle", event["id"], _job_id=event["id"])
        return JSONResponse({"status": "accepted", "event_id": event["id"]})

    return Starlette(routes=[Route(STRIPE_PATH, receive, methods=["POST"])], lifespan=open_pools)


APPS: dict[str, Callable[[], Any]] = {
    "plain": lambda: plain,
    "starlette": starlette,
    "textbook": textbook,
}


def main() -> None:
    """python -m bench.contestants NAME PORT"""
    config = uvicorn.Config(
        APPS[sys.argv[1]](),
        port=int(sys.argv[2]),
        http="httptools",
        lifespan="auto",
        log_level="error",
        access_log=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    uvloop.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
