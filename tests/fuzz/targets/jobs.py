"""Requests to publish: their body and their key, read and claimed in a real Postgres."""

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from gateway.base.errors import RequestRejected
from gateway.base.model import Envelope
from gateway.ledger.claims import Claim
from gateway.providers.publish import KEY_HEADER, JobRequest, read_job
from tests.fuzz.storage import storing
from tests.fuzz.target import Check, Finding, Stage, Target, header, join, parts
from tests.fuzz.targets.bodies import hostile_documents
from tests.fuzz.targets.signatures import NOW


@contextmanager
def _open(stage: Stage) -> Iterator[Check]:
    with storing(stage) as (storage, run):

        def check(data: bytes) -> None:
            key, body = parts(data, 2)
            headers = {KEY_HEADER: header(key)} if key else {}
            try:
                job = read_job("mails", headers, body)
            except RequestRejected:
                return
            if orjson.loads(job.body) != orjson.loads(body)["payload"]:
                raise Finding("the job's payload is not what was published")
            run(storage.keep(_claim(job)))

        yield check


def _claim(job: JobRequest) -> Claim:
    return Claim(
        route="mails",
        provider="publish",
        envelope=Envelope(id=job.id, type=job.type, occurred_at=NOW),
        received_at=NOW,
        digest=job.digest,
        headers={},
        body=job.body,
        repeats=None,
        handlers=("h",),
        delay=job.delay or None,
    )


def _seeds() -> list[bytes]:
    whole = {"payload": {"a": 1}, "idempotencyKey": "k", "delaySeconds": 1.5, "type": "t"}
    keys = [b"", b"k", b'"k"', b'"a\\"b"', b'"\\', b"a, b", b"\xff", b"x" * 300]
    return [
        *(join(key, orjson.dumps({"payload": 1})) for key in keys),
        join(b"", orjson.dumps(whole)),
        *(join(b"", b'{"payload":%b}' % value) for value in hostile_documents()),
        *(join(b"", b'{"payload":1,"type":%b}' % value) for value in hostile_documents()),
        *(join(b"", b'{"payload":1,"delaySeconds":%b}' % value) for value in hostile_documents()),
    ]


TARGET = Target("jobs", _seeds, _open, on_engines=True)
