"""Signatures and times as they stand in a request: one, several, or name=value pairs."""

from collections.abc import Callable, Sequence
from typing import Final

from gateway.errors import BadSignature
from gateway.providers.schemes.places import Looked, Reader
from gateway.providers.schemes.sections import ItemSection, SignedSection

MOST_SIGNATURES: Final = 16
MOST_CHARS: Final = 4096


def items_reader(section: ItemSection, *, most: int | None = None) -> Callable[[Looked], list[str]]:
    """The values in those places that are there, or in the first so many of them."""
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
        # Time and signatures are mostly in one place, which is taken apart once.
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
    """The signatures of one scheme; those with another prefix are ignored, against downgrades."""
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
    """The one time of signing, as it is written."""
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
