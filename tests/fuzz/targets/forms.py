"""Form bodies: the document in their `payload`, or a ValueError."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

from gateway.base.model import FORM, payload_bytes
from tests.fuzz.target import Check, Finding, Stage, Target, join, parts


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    kind, body = parts(data, 2)
    for form in (kind.decode("latin-1"), FORM):
        try:
            document = payload_bytes({"content-type": form}, body)
        except ValueError:
            continue
        is_form = document is not body
        if is_form and _by_the_book(body) not in (None, document):
            raise Finding("read differently than by the standard library")


def _by_the_book(body: bytes) -> bytes | None:
    fields = parse_qs(body.decode("ascii"), keep_blank_values=True, encoding="latin-1")
    values = fields.get("payload", [])
    return values[0].encode("latin-1") if len(values) == 1 else None


def _seeds() -> list[bytes]:
    kind = FORM.encode()
    return [
        join(kind, b"payload=%7B%22a%22%3A1%7D"),
        join(kind, b"a=b&payload=%7b+%7d&c=d"),
        join(kind, b"payload=%%%41%4&payload=x"),
        join(kind, b"payload=" + b"%41" * 100),
        join(kind, b"&&&&"),
        join(b"APPLICATION/X-WWW-FORM-URLENCODED ; charset=x", b"payload="),
        join(b"application/json", b"{}"),
    ]


TARGET = Target("forms", _seeds, _open)
