"""A project with queues, and how to publish to it: every answer is one that is documented."""

import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
from jsonschema import Draft202012Validator

from gateway.api.jobs import PATH
from gateway.api.openapi import describe_api
from tests.support.processes import Project, Serving
from tests.support.waiting import PATIENCE_S

TOKEN = "orders-token-of-the-suite"
OLD_TOKEN = "orders-token-before-that-one"
ADMIN_TOKEN = "admin-token-of-the-suite"
OTHER_TOKEN = "parcels-token-of-the-suite"
ROUTES = """
schema: [handlers/schema.sql]
defaults:
  retry: {attempts: 2, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
  orders:
    provider: publish
    tokens: [env:ORDERS_TOKEN, env:OLD_ORDERS_TOKEN]
    handlers: [handlers.jobs]
    max_body: 64KiB
  parcels:
    provider: publish
    tokens: [env:PARCELS_TOKEN]
  closed:
    provider: publish
"""
JOBS = '''
"""Two handlers for each order."""

from gateway import Context, Event, Reject, handler


@handler("*")
async def charge(event: Event, ctx: Context) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler) values ($1, 'charge')", event.id
    )
    if event.type == "bad":
        raise Reject("no such card")


@handler("*")
async def pack(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'pack')", event.id)
'''


DOCUMENT = describe_api((), ["orders", "parcels"])


def with_queues(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/jobs.py", JOBS)
    project.environ |= {
        "ORDERS_TOKEN": TOKEN,
        "OLD_ORDERS_TOKEN": OLD_TOKEN,
        "PARCELS_TOKEN": OTHER_TOKEN,
        "GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN,
    }
    return project


def jobs(queue: str = "orders", id: str | None = None) -> str:
    path = f"/v1/queues/{queue}/jobs"
    return path if id is None else f"{path}/{quote(id, safe='')}"


async def publish(
    serving: Serving, request: Any, *, queue: str = "orders", token: str = TOKEN, **headers: str
) -> httpx.Response:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await serving.post(
        body, {"authorization": f"Bearer {token}", **given}, path=jobs(queue)
    )
    return as_documented(answer, DOCUMENT["paths"][PATH]["post"])


async def look(serving: Serving, id: str, *, token: str = TOKEN) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        answer = await client.get(
            serving.url + jobs(id=id), headers={"authorization": f"Bearer {token}"}
        )
    return as_documented(answer, DOCUMENT["paths"][PATH + "/{id}"]["get"])


def as_documented(answer: httpx.Response, operation: Any) -> httpx.Response:
    """The same answer, if the OpenAPI document has it."""
    media = operation["responses"][str(answer.status_code)]["content"]["application/json"]
    schema = media["schema"] | {"components": DOCUMENT["components"]}
    Draft202012Validator(schema).validate(answer.json())
    return answer


def new_key() -> str:
    return f"order:{uuid4().hex}:charge"
