"""A file of the spool that the disk, or somebody, has spoilt: what is whole in it is found."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.model import Envelope, RepeatPolicy
from gateway.ledger.claims import Claim
from gateway.receive.spool.file import SpoolRecord, UnreadableRecord, encode, scan
from tests.fuzz.target import Check, Finding, Stage, Target
from tests.fuzz.targets.signatures import NOW

WHOLE = encode(
    Claim(
        route="github",
        provider="github",
        envelope=Envelope(id="guid-1", type="push"),
        received_at=NOW,
        digest=b"\0" * 32,
        headers={"a": "b"},
        body=b'{"a":1}',
        repeats=RepeatPolicy.REFUSE,
        handlers=("h",),
    )
)


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    for file in (data, WHOLE + data, data + WHOLE):
        place, records = 0, 0
        try:
            for found in scan(io.BytesIO(file), 0, len(file)):
                if found.offset != place or found.end <= place:
                    raise Finding("the pieces of the file do not follow on each other")
                place, records = found.end, records + isinstance(found, SpoolRecord)
        except UnreadableRecord:
            continue
        if place != len(file) or (file is not data and records < 1):
            raise Finding("a whole record was not found")


def _seeds() -> list[bytes]:
    return [b"", WHOLE, WHOLE * 2, WHOLE[:-1], WHOLE[:20] * 3, WHOLE[10:], b"\xffGWSPL1\xff" * 4]


TARGET = Target("spool", _seeds, _open)
