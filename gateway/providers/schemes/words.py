"""Describe a scheme in words, for `gateway providers`."""

from typing import Final

from gateway.base.units import format_duration
from gateway.providers.provider import Facts
from gateway.providers.schemes.coverage import covers_choice
from gateway.providers.schemes.places import ValuePlace
from gateway.providers.schemes.sections import (
    DIGEST,
    TOLERANCE,
    UUID,
    BearerSection,
    HandshakeSection,
    HmacSection,
    ItemSection,
    SenderSection,
    SignedSection,
)

LONGEST: Final = 90
"""Maximum length of the description of the signed text. A longer one is summarized."""
MOST: Final = 3
KINDS: Final = {"ed25519": "Ed25519", "ecdsa": "ECDSA-SHA256"}


def describe_facts(kind: str, section: SenderSection, *, title: str) -> Facts:
    """Return the facts that follow from the scheme itself."""
    return Facts(
        title=title,
        scheme=describe_scheme(kind, section),
        id=" or ".join(_said(choice.said) for choice in section.id),
        type=" or ".join(choice.said for choice in section.type),
        unsigned=_unsigned(section),
        handshake=tuple(map(_handshake, section.handshake)),
        batch=None if section.batch is None else f"one event per item of {_where(section.batch)}",
    )


def describe_scheme(kind: str, section: SenderSection) -> str:
    """Describe how a request is verified: `HMAC-SHA256 hex over {body}, header x-signature`."""
    if isinstance(section, SignedSection):
        told = f"{_algorithm(kind, section)} over {_signed(section)}, {_at(section.signature)}"
        if section.timestamp is not None:
            told += f", {format_duration(section.tolerance or TOLERANCE)}"
        return told
    if isinstance(section, BearerSection):
        return f"a shared token, {_places(section.token.at)}; nothing is signed"
    return "user and password (basic auth); nothing is signed"


def _signed(section: SignedSection) -> str:
    told = str(section.signed)
    return (
        told if len(told) <= LONGEST else f"{len(list(section.signed.parts))} parts of the request"
    )


def _algorithm(kind: str, section: SignedSection) -> str:
    encoding = section.signature.encoding
    if not isinstance(section, HmacSection):
        return f"{KINDS[kind]} {encoding}"
    told = f"HMAC-{section.algorithm.upper()} {encoding}"
    return told if section.public is None else f"{told} (or {KINDS[section.public.algorithm]})"


def _at(section: ItemSection) -> str:
    told = _places(section.at)
    return told if section.field is None else f"{told} ({section.field})"


def _places(places: list[ValuePlace]) -> str:
    by_source: dict[str, list[str]] = {}
    for place in places:
        by_source.setdefault(place.source, []).append(place.name)
    return " or ".join(f"{source} {_some(names)}" for source, names in by_source.items())


def _some(names: list[str]) -> str:
    if len(names) <= MOST:
        return " or ".join(names)
    return f"{names[0]} or {len(names) - 1} like it"


def _where(batch: ValuePlace | str) -> str:
    return "the body" if isinstance(batch, str) else str(batch)


def _said(choice: str) -> str:
    if choice == UUID:
        return "a new UUID per request"
    return "SHA-256 of the body" if choice == DIGEST else choice


def _unsigned(section: SenderSection) -> tuple[str, ...]:
    told = []
    for name, choices in (("id", section.id), ("type", section.type)):
        signed = isinstance(section, SignedSection) and all(
            covers_choice(section, choice) for choice in choices
        )
        if not signed:
            told.append(name)
    return tuple(told)


def _handshake(handshake: HandshakeSection) -> str:
    when = ", ".join(f"{place} = {value}" for place, value in handshake.when.items())
    asked: str = handshake.method
    if handshake.unsigned:
        asked = f"unsigned {asked}"
    elif handshake.constant_key is not None:
        asked = f"{asked} signed with {handshake.constant_key}"
    if handshake.fields:
        asked += f" of nothing but {', '.join(handshake.fields)}"
    asked = f"{asked} with {when}" if when else asked
    if handshake.json_answer is not None:
        answer = "JSON with " + ", ".join(handshake.json_answer)
    else:
        answer = handshake.text or "no body"
    token = ", if its token is the route's verify_token" if handshake.token is not None else ""
    return f"{asked}: {handshake.status}, {answer}{token}"
