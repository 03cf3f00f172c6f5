"""Body templates: JSON files whose placeholders are filled anew for each sample."""

import re
import secrets
import string
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final

import orjson

_INCLUDE: Final = "{{include}}"
_PLACEHOLDER: Final = re.compile(r"\{\{(?P<word>[a-z_]+)(?P<offset>[+-]\d+)?(?::(?P<label>\w+))?}}")
_ALPHABET: Final = string.digits + string.ascii_letters
_ID_CHARS: Final = 24
_NODE_CHARS: Final = 10


@cache
def load_template(path: str) -> Any:
    """Load `samples/<path>.json` and resolve its includes.

    It is cached, so do not change it.
    """
    provider = path.partition("/")[0]
    return _include(
        provider, orjson.loads(files(__package__).joinpath(f"{path}.json").read_bytes())
    )


def _include(provider: str, node: Any) -> Any:
    if isinstance(node, list):
        return [_include(provider, item) for item in node]
    if not isinstance(node, dict):
        return node
    own = {key: _include(provider, value) for key, value in node.items() if key != _INCLUDE}
    if _INCLUDE not in node:
        return own
    return {**load_template(f"{provider}/{node[_INCLUDE]}"), **own}


@cache
def list_templates(folder: str) -> tuple[str, ...]:
    """Return the sorted names of the JSON files directly in `samples/<folder>`."""
    entries = files(__package__).joinpath(folder).iterdir()
    return tuple(
        sorted(
            entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")
        )
    )


def bind(template: Any, document: Any) -> dict[str, object]:
    """Return the placeholder values with which the template would give this document.

    Placeholders of times are left out, because a later event has later ones. If the document
    differs from the template, only their common parts are bound.
    """
    if isinstance(template, dict) and isinstance(document, dict):
        pairs = [(template[key], document[key]) for key in template if key in document]
    elif isinstance(template, list) and isinstance(document, list):
        pairs = list(zip(template, document, strict=False))
    else:
        match = _PLACEHOLDER.fullmatch(template) if isinstance(template, str) else None
        known = match is not None and match["word"] not in _TIMES and document is not None
        return {template[2:-2]: document} if known else {}
    found: dict[str, object] = {}
    for part, value in pairs:
        found = bind(part, value) | found
    return found


class Blanks:
    """The placeholder values of one sample."""

    def __init__(self, given: Mapping[str, object], *, now: datetime) -> None:
        self._values = {f"{{{{{word}}}}}": value for word, value in given.items()}
        self._now = now.astimezone(UTC)

    def fill(self, node: Any) -> Any:
        """Return a copy of the template with every placeholder filled."""
        if isinstance(node, dict):
            return {key: self.fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [self.fill(item) for item in node]
        if not isinstance(node, str) or "{{" not in node:
            return node
        whole = _PLACEHOLDER.fullmatch(node)
        if whole:
            return self._value(whole)
        return _PLACEHOLDER.sub(lambda match: str(self._value(match)), node)

    def _value(self, match: re.Match[str]) -> object:
        placeholder = match[0]
        if placeholder not in self._values:
            self._values[placeholder] = self._make(match["word"], match["offset"], match["label"])
        return self._values[placeholder]

    def _make(self, word: str, offset: str | None, label: str | None) -> object:
        if word in _TIMES and label is None:
            return _TIMES[word](self._now + timedelta(seconds=int(offset or 0)))
        if word in _DRAWS and label is not None and offset is None:
            return _DRAWS[word](label)
        raise ValueError(f"no such placeholder: {word}, offset {offset}, label {label}")


def draw_alnum(length: int) -> str:
    """Return random letters and digits, as in Stripe's ids."""
    number = secrets.randbits(6 * length)
    characters = []
    for _ in range(length):
        number, index = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[index])
    return "".join(characters)


def _iso(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _iso_ms(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


_TIMES: Final[Mapping[str, Callable[[datetime], object]]] = {
    "now": lambda moment: int(moment.timestamp()),
    "iso": _iso,
    "iso_ms": _iso_ms,
}
_DRAWS: Final[Mapping[str, Callable[[str], object]]] = {
    "id": lambda prefix: f"{prefix}_{draw_alnum(_ID_CHARS)}",
    "node": lambda prefix: f"{prefix}_kwDO{draw_alnum(_NODE_CHARS)}",
    "alnum": lambda label: draw_alnum(_ID_CHARS),
    "guid": lambda label: str(uuid.uuid4()),
    "sha": lambda label: secrets.token_hex(20),
    "int": lambda label: 1_000_000_000 + secrets.randbelow(3_000_000_000),
    "number": lambda label: 1 + secrets.randbelow(9_999),
    "cents": lambda label: 500 + secrets.randbelow(49_500),
}
