"""Templates: text with parts of a request, `{timestamp}.{body}`, `{json.type}.{json.action}`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.base.problems import Unexpected, describe
from gateway.providers.schemes.places import PLACE_PATTERN, Reader, ValuePlace

WORDS: Final = ("body", "timestamp", "id", "url", "method", "path", "params")
"""Words allowed in `signed` beside places. `params` are the fields of a form, sorted and joined."""
LONGEST: Final = 1000
_PIECE: Final = re.compile(r"\{([^{}]*)\}|([^{}]+)|(.)", re.DOTALL)
_SEGMENT: Final = re.compile(r"\[([^\[\]{}]*)\{([^{}]*)\}([^\[\]{}]*)\]")
"""`[id:{query.id};]` in `signed`: left out as a whole if the place holds nothing."""


class Part(NamedTuple):
    """A placeholder of a template: a word or a place."""

    word: str
    place: ValuePlace | None = None
    is_optional: bool = False
    """Whether a missing value is replaced with an empty text."""
    around: tuple[str, str] | None = None
    """Text before and after the part, left out together with it. None if the
    part is no such segment.
    """

    def __str__(self) -> str:
        text = "{" + self.word + ("?" if self.is_optional else "") + "}"
        return text if self.around is None else f"[{self.around[0]}{text}{self.around[1]}]"


@dataclass(frozen=True, slots=True)
class Template:
    """Literal text and parts, in order."""

    pieces: tuple[str | Part, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.pieces))

    @property
    def said(self) -> str:
        """The notation that `parse_choice` accepts: a single place has no braces."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Part):
            return str(self.pieces[0].place or self.pieces[0].word)
        return str(self)

    @property
    def parts(self) -> Iterator[Part]:
        return (piece for piece in self.pieces if isinstance(piece, Part))

    @property
    def places(self) -> list[ValuePlace]:
        """Places of the parts that are not words."""
        return [part.place for part in self.parts if part.place is not None]

    def has(self, word: str) -> bool:
        return any(part.word == word for part in self.parts)

    def reader(self) -> Reader:
        """Return a function that renders the text from a request, or None if a
        required part is missing.
        """
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Part):
            return _required(self.pieces[0])
        readers = [piece if isinstance(piece, str) else _required(piece) for piece in self.pieces]

        def read(looked: object) -> str | None:
            texts = [reader if isinstance(reader, str) else reader(looked) for reader in readers]  # type: ignore[arg-type]  # a Looked
            return None if None in texts else "".join(filter(None, texts))

        return read

    def gives(self, text: str) -> bool:
        """Whether the template can produce this text."""
        return self._found(text) is not None

    def match(self, text: str) -> dict[ValuePlace, str]:
        """Return the value that each place must hold for the template to produce this text."""
        found = self._found(text)
        return {} if found is None else dict(zip(self.places, found.groups(), strict=True))

    def _found(self, text: str) -> re.Match[str] | None:
        pattern = "".join(
            re.escape(piece) if isinstance(piece, str) else "(.+?)" for piece in self.pieces
        )
        return re.fullmatch(pattern, text, re.DOTALL)


def _required(part: Part) -> Reader:
    if part.place is None:
        raise ValueError(f"{part} is no place")
    reader = part.place.reader()
    return (lambda looked: reader(looked) or "") if part.is_optional else reader


def parse_template(text: object, *, words: tuple[str, ...] = ()) -> Template:
    """Parse a template. Raises Unexpected."""
    expected = _expected(words)
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
        raise Unexpected(found=describe(text), expected=expected)
    pieces: list[str | Part] = []
    if words and (segment := _SEGMENT.search(text)):
        before, after = text[: segment.start()], text[segment.end() :]
        if before:
            pieces += parse_template(before, words=words).pieces
        pieces.append(_segment(segment, expected))
        if after:
            pieces += parse_template(after, words=words).pieces
        return Template(tuple(pieces))
    for inner, literal, stray in _PIECE.findall(text):
        if stray:
            raise Unexpected(found=describe(text), expected=f"{{ and }} in pairs: {expected}")
        pieces.append(literal or _part(inner, words, expected))
    return Template(tuple(pieces))


def _segment(found: re.Match[str], expected: str) -> Part:
    before, inner, after = found.groups()
    part = _part(inner, (), expected)
    if part.is_optional:
        raise Unexpected(found=found[0], expected=f"[{before}{{{inner[:-1]}}}{after}], without ?")
    return part._replace(around=(before, after))


def _part(inner: str, words: tuple[str, ...], expected: str) -> Part:
    name = inner.removesuffix("?")
    if name in words:
        if name != inner:
            raise Unexpected(found="{" + inner + "}", expected=f"{{{name}}}, which is always there")
        return Part(name)
    if not re.fullmatch(PLACE_PATTERN, name):
        raise Unexpected(found="{" + inner[:60] + "}", expected=expected)
    place = ValuePlace.parse(name)
    return Part(str(place), place, name != inner)


def _expected(words: tuple[str, ...]) -> str:
    known = ", ".join(f"{{{word}}}" for word in words)
    beside = f"{known} or " if known else ""
    return f"text with {beside}places such as {{header.x-name}} or {{json.data.id}} in it"


def parse_choice(text: object) -> Template:
    """Parse one way to find a value: a place, text with places in braces, or a literal."""
    if isinstance(text, str) and re.fullmatch(PLACE_PATTERN, text):
        return parse_template("{" + text + "}")
    return parse_template(text)
