"""Build small, plausible bodies of a described sender, with the required values in their places."""

import secrets
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from gateway.base.model import FORM
from gateway.providers.provider import Drafts, Incoming
from gateway.providers.schemes.moments import format_moment
from gateway.providers.schemes.places import ValuePlace
from gateway.providers.schemes.planting import choose, plant
from gateway.providers.schemes.reader import make_read, make_split
from gateway.providers.schemes.sections import (
    DIGEST,
    SenderSection,
    SignedSection,
)
from gateway.providers.schemes.template import Template

EXAMPLE: Final = "test"
NOTE: Final = "sample"
"""A field with a random value, added to make bodies unique that would be identical otherwise."""


def make_drafts(section: SenderSection) -> Drafts:
    said = " or ".join(choice.said for choice in section.type)

    def fits(type: str) -> bool:
        return choose(section.type, type) is not None

    def make(type: str, now: datetime) -> tuple[str, bytes]:
        fields = _Fields(section, type, now)
        body = fields.body()
        return fields.id or _read_id(section, body), body

    return Drafts(
        example=_example(section.type),
        expected=f"text as {said} gives it",
        fits=fits,
        is_form=uses_form(section),
        make=make,
    )


def uses_form(section: SenderSection) -> bool:
    """Whether samples of this scheme are forms."""
    if isinstance(section.batch, ValuePlace):
        return section.batch.source == "form"
    if isinstance(section, SignedSection) and section.signed.has("params"):
        return True
    choices = [*section.id[:1], *section.type[:1]]
    return any(place.source == "form" for choice in choices for place in choice.places)


def _example(choices: Sequence[Template]) -> str:
    first = choices[0]
    parts = [piece if isinstance(piece, str) else EXAMPLE for piece in first.pieces]
    return "".join(parts)


class _Fields:
    """The values of one sample, by place."""

    def __init__(self, section: SenderSection, type: str, now: datetime) -> None:
        self._section = section
        self._values: dict[ValuePlace, Any] = {}
        choice = choose(section.type, type)
        self._values |= {} if choice is None else choice.match(type)
        if isinstance(section, SignedSection) and section.timestamp is not None:
            # Set the timestamp before the id, because it may be a part of the id.
            moment = format_moment(now, section.timestamp.unit)
            self._values.setdefault(section.timestamp.at[0], _number(moment))
        self.id = self._draw_id(section.id[0])
        if isinstance(section, SignedSection):
            self._add_signed(section)
        if section.occurred_at is not None:
            moment = format_moment(now, section.occurred_at.unit)
            self._values.setdefault(section.occurred_at.at, _number(moment))
        if section.livemode is not None:
            self._values.setdefault(section.livemode, False)

    def _draw_id(self, choice: Template) -> str | None:
        """Return a new id, which may contain the type, or None if the
        digest of the body is the id.
        """
        if str(choice) == DIGEST:
            self._values[ValuePlace("form" if uses_form(self._section) else "json", NOTE)] = str(
                uuid.uuid4()
            )
            return None
        places = choice.places
        for place in places:
            new = f"evt_{secrets.token_hex(12)}" if len(places) == 1 else secrets.randbelow(10**9)
            self._values.setdefault(place, new)
        filled = {str(place): str(self._values[place]) for place in places}
        return "".join(
            piece if isinstance(piece, str) else filled.get(piece.word, "")
            for piece in choice.pieces
        )

    def _add_signed(self, section: SignedSection) -> None:
        for part in section.signed.parts:
            if part.place is not None and not part.is_optional:
                self._values.setdefault(part.place, secrets.token_hex(8))

    def body(self) -> bytes:
        document: dict[str, Any] = {}
        for place, value in self._values.items():
            if place.source == "json":
                plant(document, place.keys, value)
        fields = {p.name: v for p, v in self._values.items() if p.source == "form"}
        if self._section.batch is not None:
            return wrap(document, self._section.batch)
        if uses_form(self._section):
            return urlencode(fields or {NOTE: uuid.uuid4()}).encode()
        return orjson.dumps(document)


def wrap(item: Any, batch: ValuePlace | str | None) -> bytes:
    """Return a body with one item in it."""
    if isinstance(batch, ValuePlace) and batch.source == "form":
        return urlencode({batch.name: orjson.dumps([item])}).encode()
    return orjson.dumps(_batched(item, batch))


def _batched(document: Any, batch: ValuePlace | str | None) -> Any:
    if batch is None:
        return document
    if isinstance(batch, str):
        return [document]
    whole: dict[str, Any] = {}
    plant(whole, batch.keys, [document])
    return whole


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _read_id(section: SenderSection, body: bytes) -> str:
    """Return the id of an event that is identified by the digest of its body."""
    split = make_split(section)
    incoming = Incoming({"content-type": FORM} if uses_form(section) else {}, body)
    item = incoming if split is None else split(incoming)[0]
    return make_read(section.model_copy(update={"type": [Template((EXAMPLE,))]}))(item).id
