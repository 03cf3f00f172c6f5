"""Try whether a request verifies: as other bodies, under other secrets, for other providers."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from gateway.base.errors import RequestRejected, StaleTimestamp
from gateway.base.problems import Unexpected
from gateway.config.routes import Route
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.provider import Key

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


ANY_TIME: Final = timedelta(days=36_500)


class HashBudget:
    """How many bytes may still be hashed.

    It bounds the cost of a flood, whatever it consists of.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def spend(self, size: int) -> None:
        self._left -= size

    @property
    def is_spent(self) -> bool:
        return self._left <= 0


class TriedRoute(NamedTuple):
    """A route with its secrets."""

    route: Route
    secrets: tuple[bytes, ...]
    keys: tuple[Key, ...]
    marks: ProviderHeaders


def make_known(route: Route, secrets: Sequence[bytes]) -> TriedRoute:
    if route.provider.is_queue:  # a queue's tokens sign nothing
        return TriedRoute(route, (), (), ProviderHeaders(frozenset(), frozenset()))
    keys = read_keys(route.provider, secrets)
    return TriedRoute(route, tuple(secrets), tuple(keys), marks_of(route.provider))


def read_keys(provider: Provider, secrets: Iterable[bytes]) -> list[Key]:
    keys = []
    for secret in secrets:
        try:
            keys.append(provider.read_key(secret))
        except Unexpected:  # not a valid key of this provider
            continue
    return keys


def matches(
    provider: Provider, incoming: Incoming, keys: Sequence[Key], at: datetime, budget: HashBudget
) -> bool:
    budget.spend(len(incoming.body) * len(keys))
    try:
        provider.verify(incoming, keys=keys, now=at, tolerance=ANY_TIME)
    except StaleTimestamp:
        return True
    except RequestRejected:
        return False
    return True


PREFIX: Final = b"whsec_"
QUOTES: Final = (b'"', b"'")
WRITTEN: Final = 16
"""Cost of serializing one byte of JSON, in hashed bytes.

It is charged on the output size: a short, deeply nested document becomes long when it is indented,
and takes a third of a second.
"""
LARGEST_DOCUMENT: Final = 256 * 1024
"""Larger documents are not serialized again: each variant would take milliseconds."""


class BodyForm(NamedTuple):
    """A body as it may have been before it was changed on its way."""

    words: str
    body: bytes


class SecretForm(NamedTuple):
    """A variant of a secret that may have been intended, and the error in the configured one."""

    words: str
    secret: bytes


_STYLES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("compact JSON", {"separators": (",", ":")}),
    ("JSON with spaces", {"separators": (", ", ": ")}),
    ("JSON indented by 2", {"indent": 2}),
    ("JSON indented by 4", {"indent": 4}),
)


def body_forms(body: bytes, budget: HashBudget) -> Iterator[BodyForm]:
    """Yield each distinct variant once, the cheapest first, until the budget is spent."""
    seen = {body}
    for form in _forms(body):
        if budget.is_spent:
            return
        budget.spend(len(form.body) * WRITTEN)
        if form.body not in seen:
            seen.add(form.body)
            yield form


def _forms(body: bytes) -> Iterator[BodyForm]:
    if body.endswith(b"\n"):
        yield BodyForm("without its trailing newline", body.rstrip(b"\r\n"))
    else:
        yield BodyForm("with a trailing newline", body + b"\n")
    if b"\r\n" in body:
        yield BodyForm("with LF in place of CRLF", body.replace(b"\r\n", b"\n"))
    elif b"\n" in body:
        yield BodyForm("with CRLF in place of LF", body.replace(b"\n", b"\r\n"))
    if len(body) <= LARGEST_DOCUMENT:
        with suppress(ValueError, RecursionError):  # not JSON; lone surrogates; too deeply nested
            yield from _documents(json.loads(body))


def _documents(document: Any) -> Iterator[BodyForm]:
    """Yield the document as libraries serialize it: in ASCII or UTF-8, and with the escapes of PHP
    and Go.
    """
    for sorts in (False, True):
        for style, how in _STYLES:
            name = f"as {style}, keys sorted" if sorts else f"as {style}"
            in_ascii = json.dumps(document, sort_keys=sorts, **how)
            in_utf8 = json.dumps(document, sort_keys=sorts, ensure_ascii=False, **how)
            yield BodyForm(f"{name}, in ASCII", in_ascii.encode())
            yield BodyForm(f"{name}, in UTF-8", in_utf8.encode())
            yield BodyForm(f"{name}, with \\/ as PHP has it", in_ascii.replace("/", "\\/").encode())
            yield BodyForm(f"{name}, with \\u003c as Go has it", _as_go(in_utf8).encode())


def _as_go(text: str) -> str:
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def secret_forms(secret: bytes) -> Iterator[SecretForm]:
    """Yield the secret without accidental characters, and decoded or encoded in other ways."""
    bare = secret.strip()
    if bare != secret:
        yield SecretForm("has whitespace around it", bare)
    for quote in QUOTES:
        if len(bare) > 2 and bare.startswith(quote) and bare.endswith(quote):
            yield SecretForm("has quotes around it", bare[1:-1])
    yield SecretForm("lacks the newline that the sender's copy of it has", bare + b"\n")
    text = bare.removeprefix(PREFIX)
    if text == bare:
        yield SecretForm(f"lacks its {PREFIX.decode()}", PREFIX + bare)
    else:
        yield SecretForm(f"is to be used without its {PREFIX.decode()}", text)
    yield from _decoded(text)


def _decoded(text: bytes) -> Iterator[SecretForm]:
    with suppress(ValueError):  # binascii.Error is a ValueError
        yield SecretForm(
            "is used as text, where the sender signs with the base64 in it, as Standard Webhooks",
            base64.b64decode(text, validate=True),
        )
    with suppress(ValueError):
        yield SecretForm(
            "is used as text, where the sender signs with the hex in it",
            bytes.fromhex(text.decode("ascii")),
        )
    yield SecretForm(
        "is used as text, where the sender signs with its base64", base64.b64encode(text)
    )
