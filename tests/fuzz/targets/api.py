"""The Admin API for somebody with a token: paths, queries, bodies and cursors, never a 500."""

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from starlette.applications import Starlette

from gateway.api.http import routes
from gateway.api.operation import PREFIX
from gateway.api.operations import OPERATIONS
from gateway.base.secrets import Secret
from gateway.config.settings import Settings
from gateway.ledger.connection import Pool, open_pool
from gateway.operations.context import BackgroundTasks, OperationContext
from tests.fuzz.storage import watched
from tests.fuzz.target import Check, Finding, Stage, Target, join, parts
from tests.support.guarding import a_guard

TOKEN = "a-token-for-the-fuzzer"


class Desk:
    """The API in this process, on a real ledger."""

    def __init__(self) -> None:
        self._background = BackgroundTasks()
        self._pool: Pool | None = None
        token = Secret(TOKEN.encode())
        inside = routes(OPERATIONS, token=token, guard=a_guard(), open_office=self._office)
        app = Starlette(routes=inside)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway"
        )

    async def open(self, url: str) -> None:
        self._pool = await open_pool(url, name="fuzz api", size=2, command_timeout_s=10)

    async def close(self) -> None:
        await self._background.stop()
        if self._pool is not None:
            await self._pool.close()

    def _office(self, actor: str) -> OperationContext:
        if self._pool is None:
            raise Finding("not opened")
        return OperationContext(
            settings=Settings(),
            ledger=self._pool,
            actor=actor,
            wake=_wake,
            background=self._background,
        )

    async def ask(self, method: str, path: bytes, query: bytes, body: bytes) -> None:
        """Raises Finding for a 500."""
        target = PREFIX.encode() + path + (b"?" + query if query else b"")
        url = httpx.URL("http://gateway").copy_with(raw_path=target)
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await self._client.request(method, url, content=body, headers=headers)
        if answer.status_code >= 500:
            raise Finding(f"{answer.status_code} {answer.text}")


async def _wake(_: Sequence[int]) -> None:
    """Nobody works here."""


@contextmanager
def _open(stage: Stage) -> Iterator[Check]:
    with watched() as run:
        desk = Desk()
        run(desk.open(stage.database_url))

        def check(data: bytes) -> None:
            path, query, body = parts(data[1:], 3)
            method = "POST" if data[:1] == b"\1" else "GET"
            run(desk.ask(method, _visible(path), _visible(query), body))

        yield check
        run(desk.close())


def _visible(text: bytes) -> bytes:
    """What the HTTP parser would let through in a target."""
    return bytes(byte for byte in text if 0x21 <= byte <= 0x7E and byte not in b"#")


def _seeds() -> list[bytes]:
    moment = b'"2026-11-17T12:00:00Z"'
    cursors = [
        b"[%b,1]" % moment,
        b'[%b,"r","e"]' % moment,
        b'[%b,"\\u0000","\\ud800"]' % moment,
        b'["0001-01-01T00:00:00+14:00","r","e"]',
        b"[9223372036854775808]",
        b"[1e400]",
        b"[" * 300,
    ]
    after = [urlsafe_b64encode(cursor) for cursor in cursors] + [b"=", b"%FF", b"a" * 4001]
    paths = [operation.path.encode() for operation in OPERATIONS]
    queries = [b"limit=1", b"since=99999999999d", b"until=9999-12-31", b"type=%00", b"route=%ED%A0"]
    seeds = []
    for operation, path in zip(OPERATIONS, paths, strict=True):
        method = b"\1" if operation.in_body else b"\0"
        seeds += [method + join(path, b"", b"{}"), method + join(path, b"limit=0", b'{"a":1}')]
    listings = (b"/events", b"/dead", b"/audit", b"/bulk")
    seeds += [b"\0" + join(p, b"after=" + a, b"") for p in listings for a in after]
    seeds += [b"\0" + join(p, q, b"") for p in listings for q in queries]
    seeds += [b"\0" + join(b"/events/" + i, b"", b"") for i in (b"a", b"%00", b"%2F..%2F", b"%ff")]
    return seeds


TARGET = Target("api", _seeds, _open, on_engines=True)
