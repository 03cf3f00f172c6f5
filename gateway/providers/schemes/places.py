"""Places of values in a request: `header.x-id`, `json.event.type`, `query.token`, `form.name`."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from gateway.base.errors import BadPayload, BadSignature, RequestRejected
from gateway.base.model import is_form, payload_bytes
from gateway.base.problems import Unexpected, describe
from gateway.providers.payload import parse_json
from gateway.providers.provider import Headers, Incoming

SOURCES: Final = ("header", "json", "query", "form")
PLACE_PATTERN: Final = r"(?:header|json|query|form)\.[A-Za-z0-9_$@:.*\[\]-]{1,120}"
PLACE_EXPECTED: Final = (
    "a place such as header.x-event-id, json.data.id, query.token or form.MessageSid"
)
MOST_FIELDS: Final = 256
"""Maximum number of fields in a form or a query: more than any known sender uses."""
MOST_UNVERIFIED_BYTES: Final = 1024 * 1024
"""Maximum size of a body that is parsed before it is verified, which happens only
if the proof is inside it.
"""

Reader = Callable[["Looked"], str | None]


class Looked:
    """A request with its parsed parts. Each part is parsed lazily and at most once."""

    def __init__(self, incoming: Incoming, *, is_verified: bool = True) -> None:
        self.incoming = incoming
        self.headers: Headers = incoming.headers
        self.body = incoming.body
        self.moment: str | None = None
        """The time of signing as text, once it has been read."""
        self.pairs: dict[object, dict[str, list[str]]] = {}
        """Parsed `name=value` pairs, by place."""
        self._refusal: type[RequestRejected] = BadPayload if is_verified else BadSignature
        self._is_verified = is_verified

    @cached_property
    def json(self) -> Any:
        """The body as JSON, or the `payload` field of a form. None if a form has no such field."""
        try:
            document = payload_bytes(self.headers, self.body)
        except ValueError:
            return None
        return parse_json(document) if self._is_verified else _parse_unverified(document)

    @cached_property
    def form(self) -> Mapping[str, str]:
        """The fields of a form, the last one of each name. Empty if the body is not a form."""
        return dict(self.form_fields)

    @cached_property
    def form_fields(self) -> list[tuple[str, str]]:
        """The fields of a form, in order."""
        if not is_form(self.headers, self.body):
            return []
        return self._fields(self.body.decode("utf-8", "replace"))

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query parameters, the last one of each name."""
        return dict(self.query_fields)

    @cached_property
    def query_fields(self) -> list[tuple[str, str]]:
        """The query parameters, in order."""
        return self._fields(urlsplit(self.incoming.url).query)

    def _fields(self, text: str) -> list[tuple[str, str]]:
        try:
            return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError:
            raise self._refusal(f"found more than {MOST_FIELDS} fields; expected fewer") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {key[:60]!a} is there twice")
    return found


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_without_twins)


def _parse_unverified(document: bytes) -> Any:
    """Parse strictly, rejecting repeated keys: every parser must see the
    value that was verified.
    """
    if len(document) > MOST_UNVERIFIED_BYTES:
        raise BadSignature(f"a body of {len(document)} bytes that must be read to be verified")
    try:
        return _STRICT.decode(document.decode())
    except (ValueError, RecursionError):
        raise BadSignature("the body holds the signature, and is no exact JSON") from None


@dataclass(frozen=True, slots=True, order=True)
class ValuePlace:
    source: str
    name: str

    @classmethod
    def parse(cls, text: object) -> "ValuePlace":
        """Parse the notation, such as `json.data.id`. Raises Unexpected."""
        if not isinstance(text, str) or not re.fullmatch(PLACE_PATTERN, text):
            raise Unexpected(found=describe(text), expected=PLACE_EXPECTED)
        source, _, name = text.partition(".")
        return cls(source, name.lower() if source == "header" else name)

    def __str__(self) -> str:
        return f"{self.source}.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the path into a JSON document."""
        return tuple(self.name.split("."))

    @property
    def steps(self) -> tuple[str, ...]:
        """Path to the value in a payload. For `*name`, the path to the
        object whose keys are read.
        """
        if self.source == "form":
            return (self.name,)
        first = next((n for n, key in enumerate(self.keys) if key.startswith("*")), None)
        return self.keys[:first]

    def reader(self) -> Reader:
        """Return a function that reads the value from a request as text,
        or None if it is absent.
        """
        name, keys = self.name, self.keys
        if self.source == "header":
            return lambda looked: looked.headers.get(name)
        if self.source == "query":
            return lambda looked: looked.query.get(name)
        if self.source == "form":
            return lambda looked: looked.form.get(name)
        return lambda looked: to_text(dig(looked.json, keys))


def dig(document: Any, keys: tuple[str, ...]) -> Any:
    """Return the value at this path of a JSON document. A number is an index into a list.

    `*name` is the first key that is not `name`, for senders that use the type as a field name.
    """
    for key in keys:
        if isinstance(document, dict):
            if key not in document and key.startswith("*"):
                return next((other for other in document if other != key[1:]), None)
            document = document.get(key)
        elif isinstance(document, list) and key.isascii() and key.isdigit() and len(key) < 6:
            document = document[int(key)] if int(key) < len(document) else None
        else:
            return None
    return document


def to_text(value: Any) -> str | None:
    """Return a JSON value as text, or None if it has more than one spelling, such as a float."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else None
