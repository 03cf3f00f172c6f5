"""`ctx.publish`: follow-up work, written in the handler's own transaction."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.ledger.claims import Claim
from gateway.ledger.sealed import Vault
from gateway.ledger.turns import Turn
from gateway.model import Envelope
from gateway.providers.publish import EXACT, NAME_EXPECTED, PUBLISH, is_name, job_digest
from gateway.registry import Registry
from gateway.routes import Config, Route


def job_arguments(job: Claim) -> tuple[Any, ...]:
    """A job as the statement `publish` takes it."""
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
    """What one delivery publishes in one run."""

    def __init__(
        self, config: Config, registry: Registry, vault: Vault, make_key: Callable[[str], str]
    ) -> None:
        self._config = config
        self._registry = registry
        self._vault = vault
        self._make_key = make_key
        self._unnamed = 0
        self.delivery_ids: list[int] = []
        """Deliveries of its jobs: there once the transaction is committed."""
        self.turns: list[Turn] = []
        """What some of them wait for."""
        self.queues: list[str] = []
        """The queue of each."""

    def make(self, queue: str, payload: Any, key: str | None, type: str | None) -> Claim:
        """A job as it is kept. Raises ValueError or TypeError for what can be none."""
        route = self._queue(queue)
        body = _body(route, payload)
        if key is None:
            self._unnamed += 1
            key = self._make_key(f"publish:{self._unnamed}")
        job_type = _checked("type", queue if type is None else type)
        handlers = self._registry.for_event(queue, job_type)
        now = datetime.now(UTC)
        job = Claim(
            route=queue,
            provider=PUBLISH.name,
            envelope=Envelope(id=_checked("key", key), type=job_type, occurred_at=now),
            received_at=now,
            digest=job_digest(job_type, EXACT.decode(body.decode())),
            headers={},
            body=route.redacted({}, body),
            replay=None,
            handlers=handlers,
            order_keys=self._registry.order_keys(queue, handlers, {}, body),
        )
        return self._vault.seal_claim(job)

    def note(self, job: Claim, delivery_ids: Iterable[int]) -> None:
        """A job was written."""
        self.queues.append(job.route)
        self.delivery_ids.extend(delivery_ids)
        self.turns.extend(Turn(job.route, handler, k) for handler, k in job.order_keys.items())

    def _queue(self, name: str) -> Route:
        queues = {r.name: r for r in self._config.routes if r.provider.is_queue}
        if name not in queues:
            known = ", ".join(sorted(queues)) or "none: add a route with `provider: publish`"
            raise ValueError(f"ctx.publish: found queue {name!r}; expected one of {known}")
        return queues[name]


def _body(route: Route, payload: Any) -> bytes:
    try:
        body = orjson.dumps(payload)
    except TypeError as error:
        raise TypeError(f"ctx.publish({route.name!r}): the payload is not JSON: {error}") from None
    if len(body) > route.max_body:
        raise ValueError(
            f"ctx.publish({route.name!r}): found a payload of {len(body)} bytes; "
            f"expected at most max_body ({route.max_body})"
        )
    return body


def _checked(option: str, text: str) -> str:
    if is_name(text):
        return text
    raise ValueError(f"ctx.publish: {option}: found {text!r:.80}; expected {NAME_EXPECTED}")
