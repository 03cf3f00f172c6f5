"""Jobs that are published over HTTP."""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog
from starlette.types import Receive, Scope, Send

from gateway.base.errors import (
    NotFromHere,
    Overloaded,
    RequestRejected,
    StorageUnavailable,
    Unauthorized,
)
from gateway.base.model import Envelope
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.http.admission import Admission
from gateway.http.body import Deadlines, drain
from gateway.ledger.budget import JOB_CONNECTIONS
from gateway.ledger.claims import Claim, Claimer
from gateway.ledger.connection import PREPARED_ONCE, TROUBLE, Pool, describe, open_pool
from gateway.ledger.jobs import find_job
from gateway.providers import Headers
from gateway.providers.publish import KEY_HEADER, is_name, read_job
from gateway.receive import answers
from gateway.receive.access import AccessPolicy
from gateway.receive.answers import Answer, Taken
from gateway.receive.guard import Credential, check_bearer
from gateway.receive.reading import Items, ReceivedRequest, local_path
from gateway.receive.telemetry import RouteTelemetry

PREFIX: Final = "/v1/"
QUEUES: Final = "/v1/queues/"
JOBS: Final = "/jobs/"
ANSWER_WITHIN_S: Final = 3.0

log = structlog.get_logger("gateway.receive")


class Queues:
    """Answer clients that have a token of some queue. Without a token all paths look the same."""

    def __init__(
        self,
        url: str,
        queues: Mapping[str, AccessPolicy],
        *,
        admission: Admission,
        deadlines: Deadlines,
    ) -> None:
        """Initialize. `queues` contains each queue under its current and its former names."""
        self._url = url
        self._queues = queues
        self._admission = admission
        self._deadlines = deadlines
        self._pool: Pool | None = None

    async def open(self) -> None:
        self._pool = await open_pool(
            self._url,
            name="gateway jobs",
            size=JOB_CONNECTIONS,
            command_timeout_s=ANSWER_WITHIN_S,
            **PREPARED_ONCE,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()

    def has(self, path: str) -> bool:
        """Return whether the path belongs here.

        Without any queue tokens there are no such paths.
        """
        return path.startswith(PREFIX) and bool(self._queues)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._admission.enter(), self._deadlines.within(ANSWER_WITHIN_S, _late):
                answer = await self._answer(scope, receive)
        except NotFromHere as rejection:
            answer = answers.rejected(rejection)
        except Overloaded:
            answer = answers.OVERLOADED
        except (StorageUnavailable, *TROUBLE) as error:
            log.warning("job_not_found_out", error=describe(error))
            answer = answers.UNAVAILABLE
        await answer.send(scope, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        queue, id = _named(local_path(scope))
        given = dict(scope["headers"]).get(b"authorization")
        authorization = None if given is None else given.decode("latin-1")
        refusal = check_bearer(scope, authorization, self._accepted(queue))
        if refusal is not None:
            if refusal is answers.UNAUTHORIZED:
                await drain(receive)
            return refusal
        access = self._queues.get(queue)
        if access is None:
            return answers.explained(404, "NOT_FOUND", "found no such queue or path", close=True)
        if scope["method"] not in {"GET", "HEAD"}:
            return answers.READ_ONLY
        access.check_address(scope)
        job = await find_job(self._ledger, access.route, id) if is_name(id) else None
        if job is None:
            return answers.explained(404, "NOT_FOUND", f"found no job {id!r} in queue {queue!r}")
        return answers.shown(job)

    def _accepted(self, queue: str) -> list[Credential]:
        """Return the tokens of a queue, or of all queues if there is no queue of that name."""
        own = self._queues.get(queue)
        return [one.credential() for one in (self._queues.values() if own is None else [own])]

    @property
    def _ledger(self) -> Pool:
        if self._pool is None:
            raise StorageUnavailable("the gateway is starting")
        return self._pool


def _named(path: str) -> tuple[str, str]:
    """Return the queue and the id of `/v1/queues/{queue}/jobs/{id}`. An id may contain slashes."""
    queue, slash, id = path.removeprefix(QUEUES).partition(JOBS)
    return (queue, id) if slash and path.startswith(QUEUES) else ("", "")


def _late() -> Exception:
    return StorageUnavailable(f"no answer within {ANSWER_WITHIN_S:g} s")


THREAD_BYTES: Final = 128 * 1024
"""Requests over this are parsed in a thread: exact decoding is slower than parsing a webhook."""


class JobConflict(Taken):
    """A job whose key is that of a job with another payload or type."""


class JobRequests:
    """How the jobs of one queue are read, claimed and answered.

    They are never spooled, because the publisher can retry.
    """

    def __init__(
        self, route: Route, registry: Registry, *, claimer: Claimer, telemetry: RouteTelemetry
    ) -> None:
        self._route = route
        self._registry = registry
        self.claimer = claimer
        self.telemetry = telemetry

    def greet(self, _: ReceivedRequest) -> Answer | None:
        return None

    async def read(self, request: ReceivedRequest) -> Items | Answer:
        if len(request.body or b"") > THREAD_BYTES:
            return [await asyncio.to_thread(self._read, request)]
        return [self._read(request)]

    async def make_durable(self, _: ReceivedRequest, items: Items) -> list[Taken]:
        return [await self._take(claim) for claim in items if isinstance(claim, Claim)]

    async def answer(self, _: ReceivedRequest, __: Items, taken: list[Taken]) -> Answer:
        (job,) = taken
        if isinstance(job, JobConflict):
            return answers.explained(
                409, "CONFLICT", "the key is that of a job with another payload or type"
            )
        return answers.published(job)

    def reject(self, rejection: RequestRejected) -> Answer:
        if isinstance(rejection, Unauthorized):
            return answers.UNAUTHORIZED
        plain = answers.rejected(rejection)
        told = answers.explained(plain.status, rejection.code, rejection.reason, close=plain.close)
        return told._replace(headers=plain.headers)

    def _read(self, request: ReceivedRequest) -> Claim:
        route, registry = self._route, self._registry
        job = read_job(route.label, _with_ambiguous_key(request), request.body or b"")
        handlers = registry.for_event(route.name, job.type)
        return Claim(
            route=route.name,
            provider=route.provider.name,
            envelope=Envelope(id=job.id, type=job.type, occurred_at=request.received_at),
            received_at=request.received_at,
            digest=job.digest,
            headers={},
            body=route.redacted({}, job.body),
            repeats=None,
            handlers=handlers,
            order_keys=registry.order_keys(route.name, handlers, {}, job.body),
            delay=job.delay or None,
        )

    async def _take(self, claim: Claim) -> Taken:
        telemetry, claimed = self.telemetry, await self.claimer.claim(claim)
        fields = {"event_id": claim.envelope.id, "type": claim.envelope.type}
        if claimed.conflict:
            telemetry.conflicts.inc()
            telemetry.count("CONFLICT")
            telemetry.complain("job_conflicts", **fields)
            return JobConflict(claimed.verdict, claim.envelope.id)
        telemetry.count(claimed.verdict)
        telemetry.log.info(f"job_{claimed.verdict}", delivery_ids=claimed.delivery_ids, **fields)
        return Taken(claimed.verdict, claim.envelope.id)


def _with_ambiguous_key(request: ReceivedRequest) -> Headers:
    """Return the headers, in which several keys are joined to a value that is not a valid key."""
    fields = request.scope["headers"]
    keys = [value for name, value in fields if name == KEY_HEADER.encode()]
    if len(keys) < 2:
        return request.headers
    return {**request.headers, KEY_HEADER: b"\n".join(keys).decode("latin-1")}
