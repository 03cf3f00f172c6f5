"""By which headers the requests of a provider are known."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final, NamedTuple

from gateway.errors import RequestRejected
from gateway.providers import PROVIDERS, Provider

COMMON_HEADERS: Final = frozenset({"content-type", "user-agent", "content-length", "host"})
PROBE_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Marks(NamedTuple):
    """By which headers a provider's requests are known."""

    signatures: frozenset[str]
    """Those that depend on the secret."""
    tokens: frozenset[str]
    """Those that carry it."""


@cache
def all_marks() -> Mapping[str, Marks]:
    """Of every provider that there is. Takes a moment, once: not for the event loop."""
    return {
        name: marks_of(provider) for name, provider in PROVIDERS.items() if not provider.is_queue
    }


def marks_of(provider: Provider) -> Marks:
    """Found out from what the provider itself would send, under two secrets."""
    first, second = (provider.make_secret() for _ in range(2))
    sent, other = (_sample(provider, secret) for secret in (first, second))
    return Marks(
        frozenset(n for n, v in sent.items() if other.get(n) != v and n not in COMMON_HEADERS),
        frozenset(name for name, value in sent.items() if first in value),
    )


def _sample(provider: Provider, secret: str) -> Mapping[str, str]:
    try:
        signed = provider.sign(
            b"{}",
            secret=secret.encode(),
            id="evt_1",
            type="test",
            now=PROBE_AT,
            url="https://hooks.example.com/",
        )
    except RequestRejected:  # a queue
        return {}
    return {name.lower(): value for name, value in signed.headers.items()}
