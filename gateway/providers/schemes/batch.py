"""Split a body with several events into the exact bytes of each, without re-encoding them."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.base.errors import BadSignature, RequestRejected
from gateway.providers.schemes.places import Looked, Reader
from gateway.providers.schemes.sections import ItemSection, SignedSection

MOST_SIGNATURES: Final = 16
MOST_CHARS: Final = 4096


def items_reader(section: ItemSection, *, most: int | None = None) -> Callable[[Looked], list[str]]:
    """Return a function that reads the values at those places that are
    present, at most `most` of them.
    """
    readers = [place.reader() for place in section.at]
    separator, field = section.separator, section.field
    names = ", ".join(place.name for place in section.at)

    def read_all(looked: Looked) -> list[str]:
        texts = [text for reader in readers if (text := reader(looked)) is not None][:most]
        _check_texts(texts, names)
        if separator is None:
            return texts
        return [item for text in texts for item in text.split(separator)]

    if field is None:
        return read_all
    key = (names, separator)

    def read_field(looked: Looked) -> list[str]:
        # Time and signatures are usually in one place, which is parsed only once.
        pairs = looked.pairs.get(key)
        if pairs is None:
            pairs = looked.pairs[key] = _pairs(read_all(looked), names)
        return pairs.get(field, [])

    return read_field


def _check_texts(texts: Sequence[str], names: str) -> None:
    if not texts:
        raise BadSignature(f"no {names}")
    for text in texts:
        if len(text) > MOST_CHARS or not text.isascii():
            raise BadSignature(f"{names}: too long, or not ASCII")


def _pairs(items: Sequence[str], names: str) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise BadSignature(f"{names}: an item is not name=value")
        pairs.setdefault(name, []).append(value)
    return pairs


def signatures_reader(
    section: ItemSection, prefix: str, *, is_only: bool
) -> Callable[[Looked], list[bytes]]:
    """Return a function that reads the signatures of one scheme.

    Signatures with another prefix are ignored, to prevent downgrades.
    """
    read_items = items_reader(section)
    names = ", ".join(place.name for place in section.at)
    start = len(prefix)

    def read(looked: Looked) -> list[bytes]:
        found = [item[start:].encode() for item in read_items(looked) if item.startswith(prefix)]
        if len(found) > MOST_SIGNATURES or (is_only and not found):
            raise BadSignature(f"{names}: {len(found)} signatures; expected 1 to {MOST_SIGNATURES}")
        return found

    return read


def time_reader(section: SignedSection) -> Reader | None:
    """Return a function that reads the single time of signing as text."""
    if section.timestamp is None:
        return None
    read_items = items_reader(section.timestamp, most=1)
    names = ", ".join(place.name for place in section.timestamp.at)

    def read(looked: Looked) -> str:
        if looked.moment is None:  # read once, to be signed and to be compared
            found = read_items(looked)
            if len(found) != 1:
                raise BadSignature(f"{names}: {len(found)} timestamps; expected one")
            looked.moment = found[0]
        return looked.moment

    return read


MOST_ITEMS: Final = 2000
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def split_items(
    document: bytes, path: tuple[str, ...], refusal: type[RequestRejected]
) -> list[bytes]:
    """Return the items of the list at this path of a JSON document."""
    try:
        text = document.decode()
        start = _descend(text, _skip(text, 0), path)
        return [text[at:end].encode() for at, end in _items(text, start)]
    except (ValueError, RecursionError, IndexError):  # ValueError: bad UTF-8, bad JSON, or no list
        where = ".".join(path) or "body"
        raise refusal(
            f"`{where}`: found no list of at most {MOST_ITEMS} items; expected one"
        ) from None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _expect(text: str, at: int, char: str) -> int:
    """Skip whitespace, the character, and whitespace after it. Return the new position."""
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
