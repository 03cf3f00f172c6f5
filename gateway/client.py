"""Publish jobs to a gateway, and retry until they are known to be durable.

    async with Client("https://hooks.example.com", token=token) as gateway:
        job = await gateway.publish("orders", {"order": 9482}, key="order:9482:charge")

ClientError
├── Refused          the gateway rejects this permanently; has `status`, `code` and `detail`
│   └── Conflict     the key is that of a job with another payload or type
└── Unavailable      no response in time: the job may or may not exist; publish it again, with
                     the `key` of the error
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

COME_AGAIN: Final = frozenset({408, 425, 429})
"""Status codes to retry besides 5xx: the gateway, or a proxy, has not decided about the job."""
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 10.0
OUR_MISTAKES: Final = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)
"""Errors that a retry cannot fix."""
TOKEN: Final = re.compile(r"[!-~]+")
JOB_FIELDS: Final = (
    "id",
    "status",
    "type",
    "attempts",
    "error",
    "received_at",
    "due_at",
    "deliveries",
)


class ClientError(Exception):
    """Base class of the client's exceptions."""


class Refused(ClientError):
    """The gateway rejected the request permanently."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status = status
        """The HTTP status, such as 400."""
        self.code = code
        """The error code of the gateway, such as `BAD_PAYLOAD`."""
        self.detail = detail
        """The value found and the value expected, if the gateway reports them."""
        super().__init__(f"{status} {code}" + (f": {detail}" if detail else ""))


class Conflict(Refused):
    """The key is that of a job with another payload or type, which stays unchanged."""


class Unavailable(ClientError):
    """It is unknown whether the job was published. Publish it again later under the same key."""

    def __init__(self, reason: str, *, key: str | None = None) -> None:
        self.key = key
        """The key of the job, also if it was generated. None if nothing was published."""
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A job that is durable."""

    id: str
    """The key that was given or generated."""
    is_new: bool
    """False if the job already existed.

    It is also False if an earlier try of the same call succeeded but its response was lost, unless
    the key was generated.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The state of a job."""

    id: str
    status: str
    """`pending`, `running`, `done`, `dead` or `discarded`: the combined state of its deliveries."""
    type: str
    attempts: int
    error: str | None
    received_at: datetime
    due_at: datetime | None
    """When it will run. None if it runs, has ended, or waits for another with its ordering key."""
    deliveries: tuple[Mapping[str, Any], ...] = field(repr=False)
    """One for each handler: `handler status attempts due_at finished_at error`."""


class Client:
    """An async client of the queues of one gateway.

    A request is retried after a connection error, a timeout, or a response of 408, 425, 429 or 5xx,
    with exponential backoff, or after the `Retry-After` of the response. That is safe because all
    tries of a call have the same key.

    `url` is the URL of the gateway, `token` one of the queue's tokens. A try may take `timeout`
    seconds, and none begins later than `give_up_after` seconds after the first: then `Unavailable`
    is raised. An invalid URL or token is a ValueError.
    """

    def __init__(
        self, url: str, *, token: str, timeout: float = 10.0, give_up_after: float = 60.0
    ) -> None:
        self._give_up_after_s = give_up_after
        self._http = httpx.AsyncClient(
            base_url=_checked(url),
            timeout=timeout,
            headers={"authorization": f"Bearer {_checked_token(token)}"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. `async with` does this automatically."""
        await self._http.aclose()

    async def publish(
        self,
        queue: str,
        payload: Any,
        *,
        key: str | None = None,
        type: str | None = None,
        delay: timedelta | float | None = None,
    ) -> Published:
        """Publish a job, and return when it is durable.

        The same `key` is the same job, regardless of who publishes it and how often: choose one
        that comes from the work itself, such as `order:9482:charge`. Without one a key is generated
        for this call, so that its own tries are one job; a second call is a second job.

        `type` is the event type (default: the queue's name). With `delay` (a timedelta, or seconds)
        the job is not run sooner. Raises `Conflict`, `Refused` or `Unavailable`.
        """
        request: dict[str, Any] = {
            "payload": payload,
            "idempotencyKey": f"job_{uuid4().hex}" if key is None else key,
        }
        if type is not None:
            request["type"] = type
        if delay is not None:
            request["delaySeconds"] = (
                delay.total_seconds() if isinstance(delay, timedelta) else delay
            )
        # Serialized once, so that every try has the same bytes.
        body = json.dumps(request, allow_nan=False).encode()
        try:
            answer = await self._send("POST", _path(queue), body)
        except Unavailable as error:
            raise Unavailable(str(error), key=request["idempotencyKey"]) from error
        told = _read(answer, "id")
        return Published(id=str(told["id"]), is_new=key is None or answer.status_code == 201)

    async def job(self, queue: str, id: str) -> Job:
        """Return the state of a job.

        Raises `Refused` with status 404 if there is none, or if it was pruned: a queue keeps its
        jobs for `retention.key`.
        """
        told = _read(await self._send("GET", _path(queue, id), None), *JOB_FIELDS)
        due_at = told["due_at"]
        return Job(
            id=told["id"],
            status=told["status"],
            type=told["type"],
            attempts=told["attempts"],
            error=told["error"],
            received_at=datetime.fromisoformat(told["received_at"]),
            due_at=None if due_at is None else datetime.fromisoformat(due_at),
            deliveries=tuple(told["deliveries"]),
        )

    async def _send(self, method: str, path: str, body: bytes | None) -> httpx.Response:
        give_up_at = time.monotonic() + self._give_up_after_s
        wait_s = FIRST_WAIT_S
        while True:
            try:
                answer = await self._http.request(method, path, content=body)
            except OUR_MISTAKES as error:
                raise Refused(0, "NOT_SENT", str(error)) from error
            except httpx.RequestError as error:
                reason, asked_s = f"{error}" or type(error).__name__, 0.0
            else:
                if answer.status_code < 500 and answer.status_code not in COME_AGAIN:
                    return answer
                reason, asked_s = f"status {answer.status_code}", _retry_after_s(answer)
            pause_s = max(random.uniform(wait_s / 2, wait_s), asked_s)  # noqa: S311 (jitter)
            if time.monotonic() + pause_s > give_up_at:
                where = self._http.base_url.host
                raise Unavailable(f"no answer of the gateway at {where} in time: {reason}")
            await asyncio.sleep(pause_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)


def _checked(url: str) -> httpx.URL:
    try:
        checked = httpx.URL(url)
    except httpx.InvalidURL:
        checked = httpx.URL()
    if checked.scheme not in {"http", "https"} or not checked.host:
        # The URL is not shown, because it may contain a password.
        raise ValueError("found a URL that cannot be used; expected https://host")
    if checked.userinfo:  # httpx would send it instead of the token
        raise ValueError("found a URL with a user name or a password; expected https://host")
    return checked


def _checked_token(token: str) -> str:
    """Check the token, because a library would quote an invalid one in its error.

    The usual cause is a newline at the end of a file.
    """
    if TOKEN.fullmatch(token):
        return token
    raise ValueError(
        "found a token that no header can carry (not shown); expected visible ASCII, without"
        " spaces or a newline"
    )


def _path(queue: str, id: str | None = None) -> str:
    """Return the path, with dots encoded as well, because an id `..` would change the path."""
    path = f"v1/queues/{quote(queue, safe='')}/jobs"
    return path if id is None else f"{path}/{quote(id, safe='').replace('.', '%2E')}"


def _read(answer: httpx.Response, *fields: str) -> dict[str, Any]:
    try:
        told = answer.json()
    except ValueError:
        told = None
    expected = fields if answer.is_success else ("error",)
    if not isinstance(told, dict) or not told.keys() >= set(expected):
        raise Refused(answer.status_code, "NO_GATEWAY", "the answer is not a gateway's")
    if answer.is_success:
        return told
    refusal = Conflict if answer.status_code == 409 else Refused
    raise refusal(answer.status_code, str(told["error"]), str(told.get("detail", "")))


def _retry_after_s(answer: httpx.Response) -> float:
    """Return the wait in seconds. The header is a number or a date; other values mean no wait."""
    value = answer.headers.get("retry-after", "")
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max((aware - datetime.now(UTC)).total_seconds(), 0.0)
