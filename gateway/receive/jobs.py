"""Jobs that are published over HTTP."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog
from starlette.types import Receive, Scope

from gateway.base.errors import (
    NotFromHere,
    Overloaded,
    RequestRejected,
    StorageUnavailable,
    Unauthorized,
)
from gateway.base.failpoints import reached
from gateway.base.model import Envelope
from gateway.base.secrets import find_borne
from gateway.config.routes import Route
from gateway.http.admission import Admission
from gateway.http.body import Deadlines, drain
from gateway.http.protocol import Reply
from gateway.ledger.budget import JOB_CONNECTIONS
from gateway.ledger.claims import Claim, Claimed
from gateway.ledger.connection import PREPARED_ONCE, TROUBLE, Pool, describe, open_pool
from gateway.ledger.jobs import find_job
from gateway.providers import Headers
from gateway.providers.publish import KEY_HEADER, is_name, read_job
from gateway.receive import answers
from gateway.receive.access import AccessPolicy
from gateway.receive.answers import Answer
from gateway.receive.guard import Credential, check_bearer
from gateway.receive.keyring import Keyring
from gateway.receive.route_endpoint import ReceiveContext, RouteEndpoint

if TYPE_CHECKING:
    from gateway.telemetry.spans import Traces

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
        keyrings: Mapping[str, Keyring],
        *,
        identities: Mapping[str, str],
        gates: Mapping[str, AccessPolicy],
        admission: Admission,
        deadlines: Deadlines,
    ) -> None:
        self._url = url
        self._gates = gates
        self._keyrings = dict(keyrings)
        self._identities = identities
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
        return path.startswith(PREFIX) and bool(self._keyrings)

    async def __call__(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            with self._admission.enter(), self._deadlines.within(ANSWER_WITHIN_S, _late):
                answer = await self._answer(scope, receive)
        except NotFromHere as rejection:
            answer = answers.refused(rejection)
        except Overloaded:
            answer = answers.OVERLOADED
        except (StorageUnavailable, *TROUBLE) as error:
            log.warning("job_not_found_out", error=describe(error))
            answer = answers.UNAVAILABLE
        answer.send(reply)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        queue, id = _named(scope["path"])
        given = dict(scope["headers"]).get(b"authorization")
        authorization = None if given is None else given.decode("latin-1")
        refusal = check_bearer(scope, authorization, self._accepted(queue))
        if refusal is not None:
            if refusal is answers.UNAUTHORIZED:
                await drain(receive)
            return refusal
        if queue not in self._keyrings:
            return answers.explained(404, "NOT_FOUND", "found no such queue or path", close=True)
        if scope["method"] not in {"GET", "HEAD"}:
            return answers.READ_ONLY
        self._gates[queue].check_address(scope)
        job = await find_job(self._ledger, self._identities[queue], id) if is_name(id) else None
        if job is None:
            return answers.explained(404, "NOT_FOUND", f"found no job {id!r} in queue {queue!r}")
        return answers.shown(job)

    def _accepted(self, queue: str) -> list[Credential]:
        """Return the tokens of a queue, or of all queues if there is no queue of that name."""
        now = datetime.now(UTC)
        return [
            Credential(self._keyrings[name].at(now).keys, self._gates[name].limiter)
            for name in ([queue] if queue in self._keyrings else self._keyrings)
        ]

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


class JobEndpoint(RouteEndpoint):
    """Accept the jobs of one queue. They are never spooled, because the publisher can retry."""

    def __init__(self, route: Route, reception: ReceiveContext, *, keyring: Keyring) -> None:
        super().__init__(route, reception)
        self._keyring = keyring

    def _knows(self, headers: Headers) -> bool:
        now = datetime.now(UTC)
        ring = self._keyring.at(now)
        borne = find_borne(headers.get("authorization", ""), ring.keys)
        if borne is None:
            return False
        ring.held[borne].use.note(now)
        return True

    def _headers(self, scope: Scope) -> dict[str, str]:
        headers = super()._headers(scope)
        if len(headers) < len(scope["headers"]):
            keys = [value for name, value in scope["headers"] if name == KEY_HEADER.encode()]
            if len(keys) > 1:  # ambiguous: join them to a value that is not a valid key
                headers[KEY_HEADER] = b"\n".join(keys).decode("latin-1")
        return headers

    async def _receive(self, _: Scope, headers: Headers, body: bytes) -> Answer:
        if len(body) > THREAD_BYTES:
            claim = await asyncio.to_thread(self._read, headers, body)
        else:
            claim = self._read(headers, body)
        self._gate.take()
        reached("claim.verified")
        if self._traces is None:
            claimed = await self._claimer.claim(claim)
        else:
            claimed = await self._claim_traced(self._traces, claim, headers)
        reached("claim.answering")
        return self._answered(claim.envelope, claimed)

    async def _claim_traced(self, traces: "Traces", claim: Claim, headers: Headers) -> Claimed:
        with traces.receiving(self._route.label, headers, claim.received_at) as span:
            claimed = await self._claimer.claim(claim._replace(trace=traces.here()))
            traces.tell(span, [(claim.envelope.id, claimed.verdict)])
            return claimed

    def _read(self, headers: Headers, body: bytes) -> Claim:
        job = read_job(self._route.label, headers, body)
        now = datetime.now(UTC)
        handlers = self._registry.for_event(self._route.name, job.type)
        return Claim(
            route=self._route.name,
            provider=self._route.provider.name,
            envelope=Envelope(id=job.id, type=job.type, occurred_at=now),
            received_at=now,
            digest=job.digest,
            headers={},
            body=self._route.redacted({}, job.body),
            replay=None,
            handlers=handlers,
            order_keys=self._registry.order_keys(self._route.name, handlers, {}, job.body),
            delay=job.delay or None,
        )

    def _answered(self, envelope: Envelope, claimed: Claimed) -> Answer:
        fields = {"event_id": envelope.id, "type": envelope.type}
        if claimed.conflict:
            self._conflicts.inc()
            self._count("CONFLICT")
            self._complain("job_conflicts", **fields)
            return answers.explained(
                409, "CONFLICT", "the key is that of a job with another payload or type"
            )
        self._count(claimed.verdict)
        self._log.info(f"job_{claimed.verdict}", delivery_ids=claimed.delivery_ids, **fields)
        return answers.published(envelope.id, claimed.verdict)

    def _keep(self, *_: object) -> None:
        """Keep nothing: the response already gives the publisher the details."""

    def _refused(self, rejection: RequestRejected) -> Answer:
        told = super()._refused(rejection)
        if isinstance(rejection, Unauthorized):
            return answers.UNAUTHORIZED
        return answers.explained(
            told.status, rejection.code, rejection.reason, lines=told.lines, close=told.close
        )
