"""Recognize the requests of a provider by their headers."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final, NamedTuple

from gateway.base.errors import RequestRejected
from gateway.providers import PROVIDERS, Provider

COMMON_HEADERS: Final = frozenset({"content-type", "user-agent", "content-length", "host"})
PROBE_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


class ProviderHeaders(NamedTuple):
    """The headers that identify a provider's requests."""

    signatures: frozenset[str]
    """Headers whose value depends on the secret."""
    tokens: frozenset[str]
    """Headers that contain the secret itself."""


@cache
def all_marks() -> Mapping[str, ProviderHeaders]:
    """Return the marks of every provider. Slow on the first call: not for the event loop."""
    return {
        name: marks_of(provider) for name, provider in PROVIDERS.items() if not provider.is_queue
    }


def marks_of(provider: Provider) -> ProviderHeaders:
    """Derive the marks by signing a sample request with two different secrets."""
    first, second = (provider.make_secret() for _ in range(2))
    sent, other = (_sample(provider, secret) for secret in (first, second))
    return ProviderHeaders(
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
    except RequestRejected:  # a queue signs nothing
        return {}
    return {name.lower(): value for name, value in signed.headers.items()}
