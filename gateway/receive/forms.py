"""Variants of a body or a secret that explain why a signature does not match."""

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from gateway.receive.trying import HashBudget

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
