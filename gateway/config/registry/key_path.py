"""Keys as text, from values of a payload (`data.object.id`) or from the values of `per=`."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

PATTERN: Final = r"[^\s.]+(?:\.[^\s.]+)*"
EXPECTED: Final = "the path of a value in the payload, such as data.object.id, or a list of them"
MOST_PATHS: Final = 8
LONGEST_KEY: Final = 200
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class KeyPath:
    """The path of a value in the payload, or of several whose combination is the key.

    A path consists of field names and list indexes, outermost first.
    """

    paths: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, *texts: str) -> Self:
        """Parse paths. Raises ValueError if one is invalid."""
        if not all(re.fullmatch(PATTERN, text) for text in texts):
            raise ValueError(EXPECTED)
        return cls(tuple(tuple(text.split(".")) for text in texts))

    def __str__(self) -> str:
        return ", ".join(map(".".join, self.paths))

    def key(self, payload: Any) -> str | None:
        """Return the key as text, or None if a value is missing or null."""
        values = [_find(payload, path) for path in self.paths]
        if any(value is None for value in values):
            return None
        texts = [_as_text(value) for value in values]
        return texts[0] if len(texts) == 1 else _join(texts)

    def missing(self, payload: Any) -> str:
        """Return the paths at which the payload has no value."""
        return ", ".join(".".join(p) for p in self.paths if _find(payload, p) is None)


def key_of(values: str | int | Sequence[str | int]) -> str:
    """Return the key for one or several values given by a handler, as text.

    Raises ValueError if they are invalid.
    """
    listed = list(values) if isinstance(values, list | tuple) else [values]
    if not 0 < len(listed) <= MOST_PATHS:
        raise ValueError(f"expected 1 to {MOST_PATHS} values, found {len(listed)}")
    for value in listed:
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise ValueError(f"found {value!r:.60}; expected a text or a whole number")
    texts = [_as_text(str(value)) for value in listed]
    # A single text that begins with a bracket becomes a list of one, so it never equals a list.
    return texts[0] if len(texts) == 1 and not texts[0].startswith("[") else _join(texts)


def _join(texts: Sequence[str]) -> str:
    """Join texts as a JSON list, so that "a" and "bc" are another key than "ab" and "c"."""
    return _as_text(list(texts))


def _find(payload: Any, path: Sequence[str]) -> Any:
    for step in path:
        payload = _step(payload, step)
    return payload


def _step(node: Any, step: str) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    return None


def _as_text(value: Any) -> str:
    """Return a short plain text as it is, or else a digest, because the key is indexed."""
    text = value if isinstance(value, str) else _written(value).decode()
    if len(text) <= LONGEST_KEY and _PLAIN.fullmatch(text):
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # orjson reads deeper nesting than it writes
        return b"".join(_pieces(value))


class _Mark(bytes):
    """Punctuation, among the values that are still to be written."""


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value with sorted keys, without recursion, for any depth."""
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, _Mark):
            yield node
        elif isinstance(node, dict):
            left.append(_Mark(b"}"))
            for key in sorted(node, reverse=True):
                left += [_Mark(b","), node[key], _Mark(orjson.dumps(key) + b":")]
            yield b"{"
        elif isinstance(node, list):
            left.append(_Mark(b"]"))
            for item in reversed(node):
                left += [_Mark(b","), item]
            yield b"["
        else:
            yield orjson.dumps(node)
