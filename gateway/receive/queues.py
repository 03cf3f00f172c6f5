"""What is under /v1 beside the doors of the queues: how a job stands, and what there is not."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import structlog
from starlette.types import Receive, Scope

from gateway.errors import NotFromHere, Overloaded, StorageUnavailable
from gateway.ledger.budget import JOB_CONNECTIONS
from gateway.ledger.connection import PREPARED_ONCE, TROUBLE, Pool, describe, open_pool
from gateway.ledger.jobs import find_job
from gateway.providers.publish import is_name
from gateway.receive import answers
from gateway.receive.admission import Admission
from gateway.receive.answers import Answer
from gateway.receive.body import drain
from gateway.receive.deadlines import Deadlines
from gateway.receive.gate import Gate
from gateway.receive.guard import Credential, check_bearer
from gateway.receive.keyring import Keyring
from gateway.receive.protocol import Reply

PREFIX: Final = "/v1/"
QUEUES: Final = "/v1/queues/"
JOBS: Final = "/jobs/"
ANSWER_WITHIN_S: Final = 3.0

log = structlog.get_logger("gateway.receive")


class Queues:
    """Answers those who have a token of some queue; to strangers all paths look the same."""

    def __init__(
        self,
        url: str,
        keyrings: Mapping[str, Keyring],
        *,
        gates: Mapping[str, Gate],
        admission: Admission,
        deadlines: Deadlines,
    ) -> None:
        self._url = url
        self._gates = gates
        self._keyrings = dict(keyrings)
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
        """Whether this is the one to ask; without any token there is nothing here."""
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
        job = await find_job(self._ledger, queue, id) if is_name(id) else None
        if job is None:
            return answers.explained(404, "NOT_FOUND", f"found no job {id!r} in queue {queue!r}")
        return answers.shown(job)

    def _accepted(self, queue: str) -> list[Credential]:
        """Return the tokens of a queue, or those of all queues if there is none of that name."""
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
    """The queue and the id in `/v1/queues/{queue}/jobs/{id}`; an id may have slashes of its own."""
    queue, slash, id = path.removeprefix(QUEUES).partition(JOBS)
    return (queue, id) if slash and path.startswith(QUEUES) else ("", "")


def _late() -> Exception:
    return StorageUnavailable(f"no answer within {ANSWER_WITHIN_S:g} s")
