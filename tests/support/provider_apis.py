"""Stripe's and GitHub's APIs as reconcile uses them, for respx or on a port of their own."""

import asyncio
import contextlib
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import httpx
import orjson

from gateway.providers import PROVIDERS
from tests.support.processes import GITHUB_SECRET, STRIPE_SECRET

HOOK = "repos/octo/shop/hooks/7"


class Answers(Protocol):
    """A provider that takes a request."""

    async def answer(self, request: httpx.Request) -> httpx.Response: ...


def stripe_event(
    n: int, at: datetime, *, type: str = "invoice.paid", **more: Any
) -> dict[str, Any]:
    """The n-th event of an account."""
    return {
        "id": f"evt_{n:05}",
        "object": "event",
        "type": type,
        "created": int(at.timestamp()),
        "livemode": False,
        "data": {"object": {"id": f"in_{n}"}},
        **more,
    }


@dataclass(slots=True, kw_only=True)
class FakeStripe:
    """`GET /v1/events`, as documented: newest first, `ending_before` towards the newer ones."""

    key: str = "rk_test_of_the_suite"
    events: list[dict[str, Any]] = field(default_factory=list)
    """Of all accounts; `_account` says whose an event is."""
    requests: list[httpx.Request] = field(default_factory=list)
    page: int = 100

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return httpx.Response(401, json={"error": {"message": f"Invalid key: {self.key}"}})
        account = request.headers.get("stripe-account", "")
        mine = [e for e in self.events if e.get("_account", "") == account]
        newest_first = sorted(mine, key=lambda e: (e["created"], e["id"]), reverse=True)
        shown = [{k: v for k, v in e.items() if k != "_account"} for e in newest_first]
        path = request.url.path
        if path.startswith("/v1/events/"):
            found = [e for e in shown if e["id"] == path.removeprefix("/v1/events/")]
            return httpx.Response(200, json=found[0]) if found else _no_such_event()
        return self._list(shown, request.url.params)

    def _list(self, events: list[dict[str, Any]], params: httpx.QueryParams) -> httpx.Response:
        compare: dict[str, Callable[[int, int], bool]] = {
            "created[lt]": operator.lt,
            "created[lte]": operator.le,
            "created[gte]": operator.ge,
        }
        for name, holds in compare.items():
            if name in params:
                events = [e for e in events if holds(e["created"], int(params[name]))]
        if "types[]" in params:
            events = [e for e in events if e["type"] in params.get_list("types[]")]
        ids = [e["id"] for e in events]
        limit = min(int(params.get("limit", "10")), self.page)
        if "ending_before" in params:
            if (
                params["ending_before"] not in ids
            ):  # an event that the filter leaves out is no place
                return _no_such_event()
            newer = events[: ids.index(params["ending_before"])]
            data, has_more = newer[-limit:], len(newer) > limit
        else:
            start = ids.index(params["starting_after"]) + 1 if "starting_after" in params else 0
            data, has_more = events[start : start + limit], len(events) > start + limit
        return httpx.Response(200, json={"object": "list", "data": data, "has_more": has_more})

    def live(self, event: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        """The same event as the endpoint is sent it: signed, and not the same bytes."""
        body = orjson.dumps({**event, "pending_webhooks": 1})
        now = datetime.now(UTC)
        secret = STRIPE_SECRET.encode()
        sent = PROVIDERS["stripe"].sign(
            body, secret=secret, id=event["id"], type=event["type"], now=now
        )
        return sent.body, sent.headers


def _no_such_event() -> httpx.Response:
    return httpx.Response(404, json={"error": {"message": "No such event"}})


@dataclass(slots=True, kw_only=True)
class Sent:
    """One delivery that GitHub remembers."""

    id: int
    guid: str
    at: datetime
    redelivery: bool = False
    status_code: int = 504
    event: str = "push"
    action: str | None = None

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "guid": self.guid,
            "delivered_at": self.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "redelivery": self.redelivery,
            "duration": 0.2,
            "status": "OK" if self.status_code < 400 else "timed out",
            "status_code": self.status_code,
            "event": self.event,
            "action": self.action,
            "installation_id": None,
            "repository_id": 1,
            "throttled_at": None,
        }


async def _nowhere(_: Sent) -> int:
    return 502


@dataclass(slots=True, kw_only=True)
class FakeGithub:
    """The deliveries of one hook, newest first by cursor; `attempts` really deliver."""

    token: str = "github_token_of_the_suite"
    hook: str = HOOK
    sent: list[Sent] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """The ids of the deliveries for which another one was asked."""
    deliver: Callable[[Sent], Awaitable[int]] = _nowhere
    """Sends a delivery to the gateway; the status that came back."""
    page: int = 100
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return httpx.Response(401, json={"message": "Bad credentials"})
        path = request.url.path.lstrip("/")
        if not path.startswith(f"{self.hook}/deliveries"):
            return httpx.Response(404, json={"message": "Not Found"})
        if request.method == "POST":
            return self._again(int(path.split("/")[-2]))
        return self._list(request)

    def _list(self, request: httpx.Request) -> httpx.Response:
        shown = sorted(self.sent, key=lambda s: s.id, reverse=True)
        start = int(request.url.params.get("cursor", "0").removeprefix("v1_"))
        size = min(int(request.url.params.get("per_page", "30")), self.page)
        headers = {}
        if start + size < len(shown):
            url = str(request.url.copy_set_param("cursor", f"v1_{start + size}"))
            headers["link"] = f'<{url}>; rel="next"'
        data = [s.shown() for s in shown[start : start + size]]
        return httpx.Response(200, json=data, headers=headers)

    def _again(self, id: int) -> httpx.Response:
        found = [s for s in self.sent if s.id == id]
        if not found:
            return httpx.Response(404, json={"message": "Not Found"})
        self.asked.append(id)
        task = asyncio.create_task(self._deliver(found[0]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return httpx.Response(202, json={})

    async def _deliver(self, first: Sent) -> None:
        status = await self.deliver(first)
        again = Sent(
            id=max(s.id for s in self.sent) + 1,
            guid=first.guid,
            at=datetime.now(UTC),
            redelivery=True,
            status_code=status,
            event=first.event,
            action=first.action,
        )
        self.sent.append(again)

    def request(self, sent: Sent) -> tuple[bytes, dict[str, str]]:
        """The signed request of a delivery: the same bytes for the same guid."""
        body = orjson.dumps({"ref": "refs/heads/main", "after": sent.guid})
        secret = GITHUB_SECRET.encode()
        signed = PROVIDERS["github"].sign(
            body, secret=secret, id=sent.guid, type=sent.event, now=datetime.now(UTC)
        )
        return signed.body, signed.headers


def deliveries(
    count: int, *, before: datetime, apart: timedelta = timedelta(seconds=5)
) -> list[Sent]:
    """So many pushes that were sent, and never acknowledged."""
    return [
        Sent(id=1000 + n, guid=f"guid-{n:05}", at=before - (count - n) * apart)
        for n in range(count)
    ]


@asynccontextmanager
async def on_port(api: Answers) -> AsyncIterator[str]:
    """The API on a port of this machine, for processes of their own."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request = _request(head, url)
            length = int(request.headers.get("content-length", "0"))
            await reader.readexactly(length)
            writer.write(_bytes(await api.answer(request)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield url
    finally:
        server.close()


def _request(head: str, url: str) -> httpx.Request:
    line, *rest = head.strip().split("\r\n")
    method, target, _ = line.split(" ")
    headers: Mapping[str, str] = dict(item.split(": ", 1) for item in rest)
    return httpx.Request(method, url + target, headers=headers)


def _bytes(answer: httpx.Response) -> bytes:
    lines = [f"HTTP/1.1 {answer.status_code} X", "connection: close"]
    lines += [f"{n}: {v}" for n, v in answer.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.content
