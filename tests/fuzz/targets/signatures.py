"""The headers of every provider: whoever does not know the secret is refused, and with no error."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gateway.base.errors import RequestRejected
from gateway.providers import PROVIDERS, Incoming, Provider
from tests.fuzz.target import Check, Finding, Stage, Target, header, join, parts
from tests.unit.test_vectors import FILES, body_of, load

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
FIELDS = 8


class Sent(NamedTuple):
    """A request of a provider as somebody else's code signed it, and a key that did not."""

    provider: Provider
    key: Any
    names: tuple[str, ...]
    incoming: Incoming
    at: datetime


@cache
def sent() -> tuple[Sent, ...]:
    """One for each vector."""
    return tuple(_sent(file) for file in FILES)


def _sent(file: Path) -> Sent:
    vector, provider = load(file), PROVIDERS[file.parent.name]
    body = body_of(vector) if vector["method"] == "POST" else b""
    return Sent(
        provider=provider,
        key=provider.read_key(provider.make_secret().encode()),
        names=tuple(vector["headers"])[:FIELDS],
        incoming=Incoming(vector["headers"], body, vector["method"], vector["url"]),
        at=datetime.fromisoformat(vector["at"]),
    )


def choose(data: bytes) -> Sent:
    """By the first two bytes of an input."""
    return sent()[int.from_bytes(data[:2]) % len(sent())]


def headers_of(chosen: Sent, values: list[bytes]) -> dict[str, str]:
    """Those of the request, with other values; without those of which none is left."""
    pairs = zip(chosen.names, values, strict=False)
    return {name: header(value) for name, value in pairs if value != b"-"}


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    chosen = choose(data)
    provider = chosen.provider
    query, *values, body = parts(data[2:], FIELDS + 2)
    url = chosen.incoming.url.partition("?")[0] + "?" + header(query)
    incoming = Incoming(headers_of(chosen, values), body, "POST", url)
    try:
        provider.verify(incoming, keys=[chosen.key], now=chosen.at, tolerance=provider.tolerance)
    except RequestRejected:
        return
    raise Finding(f"{provider.name}: verified without the secret: {incoming}")


def _seeds() -> list[bytes]:
    seeds = []
    for index, one in enumerate(sent()):
        values = [one.incoming.headers[name].encode("latin-1") for name in one.names]
        query = one.incoming.url.partition("?")[2].encode()
        values += [b"-"] * (FIELDS - len(values))
        seeds.append(index.to_bytes(2) + join(query, *values, one.incoming.body[:2000]))
    return seeds


TARGET = Target("signatures", _seeds, _open)
