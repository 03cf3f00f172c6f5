"""What a route keeps from people's eyes, or out of its tables, and how that is done to a body."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, unquote_to_bytes

from gateway.model import is_form, payload_bytes
from gateway.redaction.hiding import Hide, hide_values
from gateway.redaction.paths import FieldPath, fits
from gateway.redaction.spans import cut, find_spans, read_text, values_at

REDACTED: Final = "[redacted]"
STAND_IN: Final = f'"{REDACTED}"'
WHOLE: Final = STAND_IN.encode()
"""In the place of a value; also in that of a body in which no field can be found."""
_PAYLOAD: Final = b"payload"
# Bytes that the encoding of a form never leaves as they are, and that JSON or XML has.
_NO_FORM: Final = re.compile(rb'[\x00-\x20"{}<>\\\x7f-\xff]')


class RedactAt(StrEnum):
    """When fields are taken out."""

    SHOW = "show"
    STORE = "store"


class Redacted(NamedTuple):
    """A body without its redacted values."""

    body: bytes
    values: tuple[Any, ...]
    """What was taken out of it."""
    is_whole: bool = False
    """Whether all of it was: the fields cannot be looked up in such a body."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redacted fields of a route."""

    paths: tuple[FieldPath, ...]
    at: RedactAt = RedactAt.SHOW

    def apply(self, headers: Mapping[str, str], body: bytes) -> Redacted:
        """The body as it may be seen. What stands outside the fields is left as it was."""
        try:
            if is_form(headers, body):
                return self._form(headers, body)
            return self._document(body)
        except ValueError:
            return Redacted(WHOLE, (), is_whole=True)

    def store(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """The body as it is stored."""
        return self.apply(headers, body).body if self.at is RedactAt.STORE else body

    def covers(self, steps: tuple[str, ...]) -> bool:
        """Whether the value at these steps of a payload is redacted."""
        return any(path.covers(steps) for path in self.paths)

    def hiding(self, headers: Mapping[str, str], body: bytes) -> Hide:
        """What takes the redacted values of this body out of other texts, such as errors; all of a
        text, where they cannot be found in the body and the whole of it was to be seen."""
        redacted = self.apply(headers, body)
        if redacted.is_whole and body != WHOLE:
            return lambda _: REDACTED
        return hide_values(redacted.values, REDACTED)

    def _document(self, document: bytes) -> Redacted:
        text = read_text(document)
        spans = list(find_spans(text, self.paths))
        if not spans:
            return Redacted(document, ())
        return Redacted(cut(text, spans, STAND_IN).encode(), tuple(values_at(text, spans)))

    def _form(self, headers: Mapping[str, str], body: bytes) -> Redacted:
        """A form is looked at in both ways: its own fields, and the document in its `payload`."""
        parts, values = [], list[Any]()
        for name, value in _fields(body):
            if name == _PAYLOAD:
                inner = self._document(payload_bytes(headers, body))
                values += inner.values
                value = quote_plus(inner.body).encode() if inner.values else value
            elif self._is_field(name):
                values.append(_decoded(value))
                value = quote_plus(REDACTED).encode()
            parts.append(name + b"=" + value)
        return Redacted(b"&".join(parts), tuple(values))

    def _is_field(self, name: bytes) -> bool:
        text = _decoded(name)
        return any(len(path.steps) == 1 and fits(path.steps[0], text) for path in self.paths)


def _fields(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    if _NO_FORM.search(body):
        raise ValueError("not a form")
    for field in body.split(b"&"):
        name, is_field, value = field.partition(b"=")
        is_odd = name != _PAYLOAD and _decoded(name) == _PAYLOAD.decode()  # as some would read it
        if not is_field or is_odd:
            raise ValueError("not a form")
        yield name, value


def _decoded(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode(errors="replace")
