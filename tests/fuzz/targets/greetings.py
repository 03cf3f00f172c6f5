"""What is read from a request once it is verified, or by GET from anybody: never an error."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.errors import RequestRejected
from gateway.providers import Incoming
from gateway.providers.provider import Greeting
from tests.fuzz.target import Check, Finding, Stage, Target, header, join, parts
from tests.fuzz.targets import signatures
from tests.fuzz.targets.bodies import hostile_documents
from tests.fuzz.targets.signatures import FIELDS, choose, headers_of


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    chosen = choose(data)
    provider, key = chosen.provider, chosen.key
    query, *values, body = parts(data[2:], FIELDS + 2)
    url = chosen.incoming.url.partition("?")[0] + "?" + header(query)
    incoming = Incoming(headers_of(chosen, values), body, "POST", url)
    if provider.greet_unverified is not None:
        _check_greeting(provider.greet_unverified(incoming, now=chosen.at))
    try:
        if provider.greet_by_get is not None:
            asked = incoming._replace(method="GET", body=b"")
            _check_greeting(provider.greet_by_get(asked, key=key))
        if provider.greet is not None:
            _check_greeting(provider.greet(incoming, key=key))
        for one in [incoming] if provider.split is None else provider.split(incoming):
            envelope = provider.read(one)
            if "\0" in envelope.id + envelope.type:
                raise Finding("an id or a type that Postgres refuses")
    except RequestRejected:
        return


def _check_greeting(greeting: Greeting | None) -> None:
    if greeting is not None and not greeting.content_type.isprintable():
        raise Finding("a line end in an answer's header")


def _seeds() -> list[bytes]:
    seeds = list(signatures.TARGET.seeds())
    for index in range(len(signatures.sent())):
        for document in hostile_documents():
            values = [b"a"] * FIELDS
            seeds.append(index.to_bytes(2) + join(b"a=b", *values, document))
    return seeds


TARGET = Target("greetings", _seeds, _open)
