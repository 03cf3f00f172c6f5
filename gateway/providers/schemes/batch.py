"""A body with several events: the exact bytes of each, none of them written anew."""

import json
import re
from collections.abc import Iterator
from typing import Final

from gateway.errors import RequestRejected

MOST_ITEMS: Final = 2000
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def split_items(
    document: bytes, path: tuple[str, ...], refusal: type[RequestRejected]
) -> list[bytes]:
    """The items of the list under these keys of a JSON document."""
    try:
        text = document.decode()
        start = _descend(text, _skip(text, 0), path)
        return [text[at:end].encode() for at, end in _items(text, start)]
    except (ValueError, RecursionError, IndexError):  # ValueError: no UTF-8, no JSON, no list
        where = ".".join(path) or "body"
        raise refusal(
            f"`{where}`: found no list of at most {MOST_ITEMS} items; expected one"
        ) from None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _expect(text: str, at: int, char: str) -> int:
    """Past the character, and what space is around it."""
    at = _skip(text, at)
    if text[at] != char:
        raise ValueError(f"expected {char}")
    return _skip(text, at + 1)


def _descend(text: str, at: int, path: tuple[str, ...]) -> int:
    for key in path:
        at = _expect(text, at, "{")
        while True:
            name, at = _DECODER.raw_decode(text, at)
            at = _expect(text, at, ":")
            if name == key:
                break
            at = _expect(text, _DECODER.raw_decode(text, at)[1], ",")
    return at


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    at = _expect(text, at, "[")
    if text[at] == "]":
        return
    for _ in range(MOST_ITEMS):
        end = _DECODER.raw_decode(text, at)[1]
        yield at, end
        at = _skip(text, end)
        if text[at] == "]":
            return
        at = _expect(text, at, ",")
    raise ValueError("too many items")
