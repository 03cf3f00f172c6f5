"""Where in a payload a key stands: `data.object.id`."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

PATTERN: Final = r"[^\s.]+(?:\.[^\s.]+)*"
EXPECTED: Final = "the path of a value in the payload, such as data.object.id"
LONGEST_KEY: Final = 200
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class KeyPath:
    """Names of objects' fields and places in lists, from the outside in."""

    steps: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what is no path."""
        if not re.fullmatch(PATTERN, text):
            raise ValueError(EXPECTED)
        return cls(tuple(text.split(".")))

    def __str__(self) -> str:
        return ".".join(self.steps)

    def key(self, payload: Any) -> str | None:
        """The value there as text; None where there is none, or null."""
        for step in self.steps:
            payload = _step(payload, step)
        return None if payload is None else _as_text(payload)


def _step(node: Any, step: str) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    return None


def _as_text(value: Any) -> str:
    """Short and plain as it stands, anything else by its digest: it goes into an index."""
    text = value if isinstance(value, str) else _written(value).decode()
    if len(text) <= LONGEST_KEY and _PLAIN.fullmatch(text):
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # it reads more levels than it writes
        return b"".join(_pieces(value))


class _Mark(bytes):
    """Punctuation, among values that are still to be written."""


def _pieces(value: Any) -> Iterator[bytes]:
    """The same text for the same value, however deep: without recursion."""
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
