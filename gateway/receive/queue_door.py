"""One queue's URL: token, claim, answer."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from gateway.errors import RequestRejected, Unauthorized
from gateway.failpoints import reached
from gateway.ledger.claims import Claim, Claimed
from gateway.model import Envelope
from gateway.providers import Headers
from gateway.providers.job_request import KEY_HEADER, read_job
from gateway.receive import answers
from gateway.receive.answers import Answer
from gateway.receive.door import Door, Reception
from gateway.receive.keyring import Keyring
from gateway.routes import Route
from gateway.secrets import find_borne

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.traces.spans import Traces

THREAD_BYTES: Final = 128 * 1024
"""Requests over this are read in a thread: exactly takes longer than a webhook takes."""


class QueueDoor(Door):
    """Takes the jobs of one queue. Never by the spool: whoever publishes can come again."""

    def __init__(self, route: Route, reception: Reception, *, keyring: Keyring) -> None:
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
            if len(keys) > 1:  # as text that can be no key: nobody knows which one is meant
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
        with traces.receiving(self._route.name, headers, claim.received_at) as span:
            claimed = await self._claimer.claim(claim._replace(trace=traces.here()))
            traces.tell(span, [(claim.envelope.id, claimed.verdict)])
            return claimed

    def _read(self, headers: Headers, body: bytes) -> Claim:
        job = read_job(self._route.name, headers, body)
        now = datetime.now(UTC)
        handlers = self._registry.for_event(self._route.name, job.type)
        claim = Claim(
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
        return self._vault.seal_claim(claim) if self._route.encrypt else claim

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
        """Nothing: who publishes is told what is wrong."""

    def _refused(self, rejection: RequestRejected) -> Answer:
        told = super()._refused(rejection)
        if isinstance(rejection, Unauthorized):
            return answers.UNAUTHORIZED
        return answers.explained(
            told.status, rejection.code, rejection.reason, lines=told.lines, close=told.close
        )
