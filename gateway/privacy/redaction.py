"""Redaction: fields that are hidden from people, or removed before storage."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote_plus, unquote_to_bytes

import orjson

from gateway.base.model import is_form, payload_bytes

ANY: Final = "*"
PATTERN: Final = r"[^\s.]+(?:\.[^\s.]+)*"
EXPECTED: Final = "the path of a field in the payload, such as data.object.email or items.*.phone"
LONGEST: Final = 300


def fits(step: str, key: str | int) -> bool:
    """Return whether a step of a path matches the name of a field, or the index of a list item."""
    return step in (ANY, str(key))


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A path of field names and list indexes, from the outside in."""

    steps: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a path. Raises ValueError."""
        if len(text) > LONGEST or not re.fullmatch(PATTERN, text):
            raise ValueError(EXPECTED)
        return cls(tuple(text.split(".")))

    def __str__(self) -> str:
        return ".".join(self.steps)

    def covers(self, steps: tuple[str, ...]) -> bool:
        """Return whether this path redacts the value at these steps, or one that contains it."""
        return len(self.steps) <= len(steps) and self.meets(steps)

    def meets(self, steps: Iterable[str]) -> bool:
        """Return whether both lead to the same value, or one to a part of the other's value."""
        return all(fits(mine, theirs) for mine, theirs in zip(self.steps, steps, strict=False))


Span = tuple[int, int]
Steps = tuple[str, ...]

_TEXT: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN: Final = re.compile(_TEXT + r'|[{}\[\]]|[^\s,:{}\[\]"]+')
_NESTING: Final = re.compile(_TEXT + r"|[{}\[\]]")
_OPENING: Final = ("{", "[")
_CLOSING: Final = ("}", "]")
# Used only to find the end of a value, because it runs at the speed of C.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)


def read_text(document: bytes) -> str:
    """Return the text of a JSON object or list. Raises ValueError for anything else."""
    orjson.loads(document)  # validates the document, which the following code relies on
    text = document.decode()
    if not text.lstrip().startswith(_OPENING):
        raise ValueError("a document without fields")
    return text


def find_spans(text: str, paths: Iterable[FieldPath]) -> Iterator[Span]:
    """Yield the positions of the values at these paths, in order and without nesting.

    `text` comes from `read_text`. No recursion, because JSON may be a thousand levels deep.
    """
    start = len(text) - len(text.lstrip())
    levels = [_Level(text[start], [path.steps for path in paths])]
    at = start + 1
    while levels and (token := _TOKEN.search(text, at)) is not None:
        at, level = token.end(), levels[-1]
        if token[0] in _CLOSING:
            levels.pop()
        elif level.is_object and level.key is None:
            level.key = orjson.loads(token[0]) if "\\" in token[0] else token[0][1:-1]
        else:
            left = level.enter()
            if () in left or not left:
                at = _end(text, token)
                if left:
                    yield token.start(), at
            elif token[0] in _OPENING:
                levels.append(_Level(token[0], left))


def cut(text: str, spans: Iterable[Span], stand_in: str) -> str:
    """Return the text with these parts replaced."""
    pieces, end = [], 0
    for start, stop in spans:
        pieces += [text[end:start], stand_in]
        end = stop
    return "".join([*pieces, text[end:]])


def values_at(text: str, spans: Iterable[Span]) -> Iterator[Any]:
    """Yield the parsed values at these positions."""
    for start, stop in spans:
        yield orjson.loads(text[start:stop])


class _Level:
    """An object or a list on the way to a field."""

    __slots__ = ("is_object", "key", "left", "place")

    def __init__(self, opening: str, left: Sequence[Steps]) -> None:
        self.is_object = opening == "{"
        self.left = left
        self.key: str | None = None
        """The name of the field whose value comes next."""
        self.place = 0

    def enter(self) -> list[Steps]:
        """Return the remaining steps of the paths that lead into the next value."""
        step: str | int = self.place if self.key is None else self.key
        self.key, self.place = None, self.place + 1
        return [steps[1:] for steps in self.left if fits(steps[0], step)]


def _end(text: str, token: re.Match[str]) -> int:
    """Return where the value that begins with this token ends."""
    if token[0] not in _OPENING:
        return token.end()
    try:
        return _DECODER.raw_decode(text, token.start())[1]
    except RecursionError:
        return _end_of_deep(text, token.start())


def _end_of_deep(text: str, start: int) -> int:
    depth = 0
    for part in _NESTING.finditer(text, start):
        depth += (part[0] in _OPENING) - (part[0] in _CLOSING)
        if not depth:
            return part.end()
    raise ValueError("the document has no end")


Hide = Callable[[str], str]

SHORTEST: Final = 3
"""Shorter values are not searched for, because they occur nearly everywhere by chance."""
_TELLING: Final = 6
"""Shorter values, and numbers, are replaced only if they stand alone, not inside a word."""
MOST: Final = 1000
"""If there are more values to search for, the whole text is hidden."""
MOST_CHARS: Final = 10_000
"""The same for their total length: compiling a pattern of a megabyte takes half a minute."""
_ENCODED: Final = "(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"


def as_it_is(text: str) -> str:
    """Return the text unchanged."""
    return text


def hide_values(values: Iterable[Any], stand_in: str) -> Hide:
    """Return a function that replaces these values, and the values inside them, in a text.

    It finds the forms in which Python, JSON, Postgres and URLs quote a value. Truncated or computed
    values cannot be found.
    """
    found: dict[str, str] = {}
    scalars = list(islice(_scalars(values), MOST + 1))
    if len(scalars) > MOST or sum(len(str(value)) for value in scalars) > MOST_CHARS:
        return lambda _: stand_in
    for value in scalars:
        for form in _forms(value):
            if len(form) >= SHORTEST and form != stand_in:
                found[form] = _pattern(form, is_text=isinstance(value, str))
    if not found:
        return as_it_is
    longest_first = sorted(found, key=len, reverse=True)
    pattern = re.compile("|".join(found[form] for form in longest_first))
    return lambda text: pattern.sub(stand_in, text)


def hide_in(value: Any, hide: Hide) -> Any:
    """Apply a replacement to all texts within a value."""
    match value:
        case str():
            return hide(value)
        case dict():
            return {hide_in(key, hide): hide_in(part, hide) for key, part in value.items()}
        case list() | tuple():
            return [hide_in(part, hide) for part in value]
        case None | bool():
            return value
    text = str(value)
    return value if hide(text) == text else hide(text)


def _scalars(values: Iterable[Any]) -> Iterator[str | int | float]:
    stack = list(values)
    while stack:
        value = stack.pop()
        match value:
            case dict():  # not its keys: they are field names, which are common in texts
                stack += value.values()
            case list():
                stack += value
            case bool() | None:
                pass
            case _:
                yield value


def _forms(value: str | int | float) -> set[str]:
    text = str(value)
    one_line = " ".join(text.split())
    return {
        *(text, one_line, repr(text)[1:-1], ascii(text)[1:-1]),
        *(json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]),
    }


def _pattern(form: str, *, is_text: bool) -> str:
    pattern = in_any_form(form)
    if is_text and len(form) >= _TELLING:
        return pattern
    return rf"{_ENCODED}{pattern}(?![A-Za-z0-9])"


def in_any_form(text: str) -> str:
    """Return a pattern for a text, plain or percent-encoded, as a whole or in part."""
    return "".join(map(_character_in_any_form, text))


def _character_in_any_form(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    encoded = "".join(f"%{byte:02x}" for byte in character.encode(errors="surrogatepass"))
    space = r"|\+" if character == " " else ""
    return f"(?:{re.escape(character)}|(?i:{encoded}){space})"


REDACTED: Final = "[redacted]"
STAND_IN: Final = f'"{REDACTED}"'
WHOLE: Final = STAND_IN.encode()
"""Replaces a value, or the whole body if it cannot be searched for fields."""
_PAYLOAD: Final = b"payload"
# Bytes that form encoding never leaves unescaped, and that occur in JSON or XML.
_NO_FORM: Final = re.compile(rb'[\x00-\x20"{}<>\\\x7f-\xff]')


class RedactAt(StrEnum):
    """When fields are redacted."""

    SHOW = "show"
    STORE = "store"


class Redacted(NamedTuple):
    """A body without its redacted values."""

    body: bytes
    values: tuple[Any, ...]
    """The values that were removed."""
    is_whole: bool = False
    """Whether the whole body was redacted, because it could not be searched for fields."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redacted fields of a route."""

    paths: tuple[FieldPath, ...]
    at: RedactAt = RedactAt.SHOW

    def apply(self, headers: Mapping[str, str], body: bytes) -> Redacted:
        """Return the body as it may be shown. Everything outside the fields stays unchanged."""
        try:
            if is_form(headers, body):
                return self._form(headers, body)
            return self._document(body)
        except ValueError:
            return Redacted(WHOLE, (), is_whole=True)

    def store(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return the body as it is stored."""
        return self.apply(headers, body).body if self.at is RedactAt.STORE else body

    def covers(self, steps: tuple[str, ...]) -> bool:
        """Return whether the value at these steps of a payload is redacted."""
        return any(path.covers(steps) for path in self.paths)

    def hiding(self, headers: Mapping[str, str], body: bytes) -> Hide:
        """Return a function that removes this body's redacted values from a text.

        If the fields cannot be found in the body, it hides the whole text, unless the body is
        already redacted as a whole.
        """
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
        """Redact a form in both ways: its own fields, and the document in its `payload` field."""
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
        is_odd = name != _PAYLOAD and _decoded(name) == _PAYLOAD.decode()  # some parsers decode it
        if not is_field or is_odd:
            raise ValueError("not a form")
        yield name, value


def _decoded(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode(errors="replace")
