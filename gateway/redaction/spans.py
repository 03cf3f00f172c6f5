"""Where in a document its fields stand.

Cutting out of the text leaves all else as it was: a document that is parsed and written again has
lost the digits of its large numbers, the first of two equal keys and its white space.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from gateway.redaction.paths import FieldPath, fits

Span = tuple[int, int]
Steps = tuple[str, ...]

_TEXT: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN: Final = re.compile(_TEXT + r'|[{}\[\]]|[^\s,:{}\[\]"]+')
_NESTING: Final = re.compile(_TEXT + r"|[{}\[\]]")
_OPENING: Final = ("{", "[")
_CLOSING: Final = ("}", "]")
# Only to find out where a value ends, which it does at the speed of C.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)


def read_text(document: bytes) -> str:
    """The text of a JSON object or list. Raises ValueError for anything else."""
    orjson.loads(document)  # what follows relies on it
    text = document.decode()
    if not text.lstrip().startswith(_OPENING):
        raise ValueError("a document without fields")
    return text


def find_spans(text: str, paths: Iterable[FieldPath]) -> Iterator[Span]:
    """The values at these paths in what was read by `read_text`, in order, none within another.

    Without recursion: JSON may be a thousand levels deep.
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
    """The text with something else at these places."""
    pieces, end = [], 0
    for start, stop in spans:
        pieces += [text[end:start], stand_in]
        end = stop
    return "".join([*pieces, text[end:]])


def values_at(text: str, spans: Iterable[Span]) -> Iterator[Any]:
    """What stands there."""
    for start, stop in spans:
        yield orjson.loads(text[start:stop])


class _Level:
    """An object or a list that may have some of the fields in it."""

    __slots__ = ("is_object", "key", "left", "place")

    def __init__(self, opening: str, left: Sequence[Steps]) -> None:
        self.is_object = opening == "{"
        self.left = left
        self.key: str | None = None
        """The name of the field whose value comes next."""
        self.place = 0

    def enter(self) -> list[Steps]:
        """What is left of the paths in the value that comes next."""
        step: str | int = self.place if self.key is None else self.key
        self.key, self.place = None, self.place + 1
        return [steps[1:] for steps in self.left if fits(steps[0], step)]


def _end(text: str, token: re.Match[str]) -> int:
    """Where the value that begins with this token ends."""
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
