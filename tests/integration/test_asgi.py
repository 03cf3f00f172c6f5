"""The application of `serve` under any ASGI server, and any ASGI application under ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import uvicorn
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount
from starlette.types import ASGIApp

from gateway.base.hangup import Hangup
from gateway.config.project import load_project
from gateway.config.settings import Settings
from gateway.http.listening import listen
from gateway.http.protocol import SHORT_BYTES, BoundedHttpProtocol, State
from gateway.ledger.connection import connect
from gateway.ledger.encryption import ClaimCodec, vault_of
from gateway.ledger.names import settle_names
from gateway.processes.serve import build_app
from gateway.providers import PROVIDERS
from gateway.receive.app import App
from tests.fuzz.targets.heads import Wire
from tests.support.in_process import in_project
from tests.support.ledger import Reader
from tests.support.processes import STRIPE_SECRET, Project, stripe_request
from tests.support.waiting import until

SLACK_SECRET = "slack secret of the suite"
MAX_BODY = 64 * 1024
ROUTES = """
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    max_body: 64KiB
  slack:
    provider: slack
    secrets: [env:SLACK_SECRET]
"""


@pytest.fixture
async def app(project: Project, monkeypatch: pytest.MonkeyPatch) -> App:
    project.write("config/routes.yaml", ROUTES)
    monkeypatch.setenv("STRIPE_WEBHOOK_SECRET", STRIPE_SECRET)
    monkeypatch.setenv("SLACK_SECRET", SLACK_SECRET)
    settings = Settings(
        database_url=SecretStr(project.environ["GATEWAY_DATABASE_URL"]),
        redis_url=SecretStr(project.environ["GATEWAY_REDIS_URL"]),
        config=Path(project.directory / "config/routes.yaml"),
        data_dir=project.directory / ".gateway",
    )
    with in_project(project.directory):
        loaded = load_project(settings, with_secrets=True)
    connection = await connect(project.environ["GATEWAY_DATABASE_URL"], name="test")
    loaded = loaded.identified(await settle_names(connection, loaded.declared_names()))
    await connection.close()
    codec = ClaimCodec(vault_of(loaded.config, loaded.ring), loaded.names)
    state = State(max_connections=10, max_requests=10, max_bytes=1024 * 1024)
    return build_app(loaded, codec, state, Hangup())


@asynccontextmanager
async def served(app: ASGIApp, http: str) -> AsyncIterator[httpx.AsyncClient]:
    """By uvicorn, with one of its own protocols."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, http=http, ws="none", lifespan="on", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])
    port = listener.getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.shutdown([listener])


async def check_answers(client: httpx.AsyncClient, ledger: Reader, at: str = "") -> None:
    """Every kind of answer, of the endpoints and of the rest."""
    body, headers = stripe_request("evt_1")
    url = f"{at}/webhooks/stripe"
    for status in ("accepted", "duplicate"):
        answer = await client.post(url, content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (
            200,
            {"status": status, "event_id": "evt_1"},
        )
        assert answer.headers["content-length"] == str(len(answer.content))
    forged = await client.post(url, content=body + b" ", headers=headers)
    assert (forged.status_code, forged.json()) == (403, {"error": "BAD_SIGNATURE"})
    large = await client.post(url, content=b"x" * (MAX_BODY + 1), headers=headers)
    assert (large.status_code, large.json()) == (413, {"error": "TOO_LARGE"})
    assert large.headers["connection"] == "close"
    other = await client.put(url, content=body)
    assert (other.status_code, other.headers["allow"]) == (405, "POST")
    challenge = b'{"type":"url_verification","challenge":"3eZbrw1a"}'
    sent = PROVIDERS["slack"].sign(
        challenge, secret=SLACK_SECRET.encode(), id="", type="", now=datetime.now(UTC)
    )
    greeted = await client.post(f"{at}/webhooks/slack", content=challenge, headers=sent.headers)
    assert (greeted.status_code, greeted.json()) == (200, {"challenge": "3eZbrw1a"})
    assert (await client.head(f"{at}/healthz")).status_code == 200
    assert (await client.get(f"{at}/readyz")).json() == {"status": "ready"}
    assert 'outcome="accepted"' in (await client.get(f"{at}/metrics")).text
    missing = await client.post(f"{at}/webhooks/strip", content=body, headers=headers)
    assert (missing.status_code, missing.json()) == (404, {"error": "NOT_FOUND"})
    assert await ledger.value("select count(*) from gateway.processed_events") == 1


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_the_protocols_of_uvicorn_get_every_answer(
    app: App, ledger: Reader, http: str
) -> None:
    async with served(app, http) as client:
        await check_answers(client, ledger)


async def test_another_application_can_mount_it_under_a_prefix(app: App, ledger: Reader) -> None:
    outer = Starlette(routes=[Mount("/hooks", app)], lifespan=app.lifespan)
    async with served(outer, "httptools") as client:
        await check_answers(client, ledger, "/hooks")


class Segments(Wire):
    """A connection that keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.segments: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.segments.append(bytes(data))


LONG = b"x" * (SHORT_BYTES + 1)


@pytest.mark.parametrize(
    ("response", "method", "writes", "end"),
    [
        (Response("ok"), "GET", 1, b"content-length: 2\r\n\r\nok"),
        (Response("ok"), "HEAD", 1, b"content-length: 2\r\n\r\n"),
        (Response("ok", headers={"connection": "close"}), "GET", 1, b"connection: close\r\n\r\nok"),
        (Response(status_code=204), "GET", 2, b"HTTP/1.1 204 No Content\r\n\r\n"),
        (Response(LONG), "GET", 2, LONG),
        (StreamingResponse(iter(["o", "k"])), "GET", 4, b"1\r\nk\r\n0\r\n\r\n"),
        (Response("ok", headers={"x": "a\r\nset-cookie: b"}), "GET", 0, b""),
    ],
    ids=["short", "HEAD", "closing", "no content", "long", "streamed", "two lines in a header"],
)
async def test_our_server_sends_a_short_response_in_one_write(
    response: Response, method: str, writes: int, end: bytes
) -> None:
    config = uvicorn.Config(response, http=BoundedHttpProtocol, lifespan="off", log_config=None)
    config.load()
    state = State(max_connections=10, max_requests=10, max_bytes=1024 * 1024)
    connection = BoundedHttpProtocol(config=config, server_state=state, app_state={})
    wire = Segments()
    connection.connection_made(wire)
    connection.data_received(b"%b / HTTP/1.1\r\nhost: x\r\n\r\n" % method.encode())
    await until(lambda: connection.cycle.response_complete or wire.closed)
    assert wire.written.endswith(end)
    assert len(wire.segments) == writes
    connection.connection_lost(None)
