"""`ctx.publish`: publish jobs in the transaction of the handler."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.base.model import Envelope
from gateway.config.routes import Route
from gateway.ledger.claims import Claim
from gateway.ledger.ordering import OrderingKey
from gateway.providers.publish import EXACT, NAME_EXPECTED, PUBLISH, is_name, job_digest
from gateway.worker.resources import WorkerContext


def job_arguments(job: Claim) -> tuple[Any, ...]:
    """Return the arguments of the SQL statement `publish` for a job."""
    return (
        job.route,
        job.envelope.id,
        job.envelope.type,
        job.received_at,
        job.digest,
        job.body,
        list(job.handlers),
        [job.order_keys.get(handler) for handler in job.handlers],
        job.key_id,
        job.trace,
    )


class Outbox:
    """The jobs that one run of a delivery publishes."""

    def __init__(self, worker: WorkerContext, make_key: Callable[[str], str]) -> None:
        self._worker = worker
        self._make_key = make_key
        self._unnamed = 0
        self.delivery_ids: list[int] = []
        """Deliveries of the published jobs. They exist once the transaction is committed."""
        self.turns: list[OrderingKey] = []
        """Ordering keys of the deliveries of these jobs."""
        self.queues: list[str] = []
        """The queue of each published job."""

    def make(self, queue: str, payload: Any, key: str | None, type: str | None) -> Claim:
        """Return a job, encrypted if its route is. Raises ValueError or TypeError."""
        route = self._queue(queue)
        body = _body(route, payload)
        if key is None:
            self._unnamed += 1
            key = self._make_key(f"publish:{self._unnamed}")
        job_type = _checked("type", route.label if type is None else type)
        handlers = self._worker.registry.for_event(route.name, job_type)
        now = datetime.now(UTC)
        job = Claim(
            route=route.name,
            provider=PUBLISH.name,
            envelope=Envelope(id=_checked("key", key), type=job_type, occurred_at=now),
            received_at=now,
            digest=job_digest(job_type, EXACT.decode(body.decode())),
            headers={},
            body=route.redacted({}, body),
            repeats=None,
            handlers=handlers,
            order_keys=self._worker.registry.order_keys(route.name, handlers, {}, body),
            trace=self._worker.hooks.current_trace(),
        )
        return self._worker.codec.encryption.seal_claim(job)

    def note(self, job: Claim, delivery_ids: Iterable[int]) -> None:
        """Record a job that was written in the transaction."""
        self.queues.append(job.route)
        self.delivery_ids.extend(delivery_ids)
        self.turns.extend(
            OrderingKey(job.route, handler, k) for handler, k in job.order_keys.items()
        )

    def _queue(self, name: str) -> Route:
        routes = [route for route in self._worker.config.routes if route.provider.is_queue]
        queues = {name: route for route in routes for name in (*route.formerly, route.label)}
        if name not in queues:
            known = (
                ", ".join(sorted(route.label for route in routes))
                or "none: add a route with `provider: publish`"
            )
            raise ValueError(f"ctx.publish: found queue {name!r}; expected one of {known}")
        return queues[name]


def _body(route: Route, payload: Any) -> bytes:
    try:
        body = orjson.dumps(payload)
    except TypeError as error:
        raise TypeError(f"ctx.publish({route.label!r}): the payload is not JSON: {error}") from None
    if len(body) > route.max_body:
        raise ValueError(
            f"ctx.publish({route.label!r}): found a payload of {len(body)} bytes; "
            f"expected at most max_body ({route.max_body})"
        )
    return body


def _checked(option: str, text: str) -> str:
    if is_name(text):
        return text
    raise ValueError(f"ctx.publish: {option}: found {text!r:.80}; expected {NAME_EXPECTED}")
