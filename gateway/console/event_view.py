"""The payload of an event as a tree, and its curl command."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

import orjson
from markupsafe import Markup, escape

from gateway.console.rendering import HIDDEN, plain

OF_THE_CONNECTION: Final = frozenset(
    {"content-length", "host", "connection", "accept-encoding", "transfer-encoding", "expect"}
)
"""Headers that curl sets itself."""


def as_curl(url: str, headers: Mapping[str, str], body: str) -> str | None:
    """Return the command, or None if the body contains a NUL, which no command line can hold."""
    if "\x00" in body:
        return None
    lines = [f"curl {_quote(url)}"]
    for name, value in headers.items():
        if name not in OF_THE_CONNECTION:
            lines.append(f"  -H {_quote(f'{name}: {value}' if value else f'{name};')}")
    # Not --data: with it, a body that starts with @ would make curl read a local file.
    lines.append(f"  --data-raw {_quote(body)}")
    return " \\\n".join(lines)


def _quote(text: str) -> str:
    """Quote text for the shell and escape invisible characters.

    Otherwise the page would show them changed, the signature would not match, and a
    terminal would interpret them.
    """
    if plain(text) == text and "\n" not in text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\012")
    return f"$'{escaped.translate(_WRITTEN_OUT)}'"


_WRITTEN_OUT: Final = {
    code: "".join(f"\\{byte:03o}" for byte in chr(code).encode()) for code in HIDDEN
}
"""Table for str.translate, which is fast: no request is answered while this runs."""


MOST_NODES: Final = 4000
"""Browsers become slow with more nodes. The raw body is shown beside the tree."""

MOST_CHARACTERS: Final = 256 * 1024
LONGEST_TEXT: Final = 4000
"""Maximum length of one value. The raw body contains the rest."""

DEEPEST: Final = 32
OPEN_TO: Final = 3


class _TooMuch(Exception):
    """The document has more nodes than are drawn."""


def draw_tree(document: Any) -> Markup | None:
    """Return the tree, or None if the document is too large."""
    drawing = _Drawing()
    try:
        drawing.add("", document, 0)
    except _TooMuch:
        return None
    return Markup("".join(drawing.pieces))  # noqa: S704 (our own markup, with escaped values)


class _Drawing:
    """Builds the markup as plain strings and escapes each value.

    There are thousands of values, and `Markup` takes ten times as long to insert one.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._nodes = 0
        self._characters = 0

    def add(self, name: str, value: Any, depth: int) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES or self._characters > MOST_CHARACTERS:
            raise _TooMuch
        label = f'<span class="k">{_cut(name)}</span> ' if name else ""
        if not isinstance(value, dict | list) or not value:
            self._put(f'<div class="leaf">{label}{_scalar(value)}</div>')
        elif depth >= DEEPEST:
            self._put(f'<div class="leaf">{label}<i>deeper than is shown</i></div>')
        else:
            self._branch(label, value, depth)

    def _put(self, piece: str) -> None:
        self.pieces.append(piece)
        self._characters += len(piece)

    def _branch(self, label: str, value: dict[str, Any] | list[Any], depth: int) -> None:
        shown = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
        opened = " open" if depth < OPEN_TO else ""
        self._put(f'<details{opened}><summary>{label}<span class="n">{shown}</span></summary>')
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            self.add(str(key), item, depth + 1)
        self._put("</details>")


def _scalar(value: Any) -> str:
    kind = {str: "s", bool: "b", type(None): "b"}.get(type(value), "d")
    text = repr(value) if isinstance(value, float) else orjson.dumps(value).decode()
    return f'<bdi class="{kind}">{_cut(text)}</bdi>'


def _cut(text: str) -> str:
    """Truncate and escape the text."""
    more = len(text) - LONGEST_TEXT
    cut = plain(text) if more <= 0 else f"{plain(text[:LONGEST_TEXT])}… and {more:,} characters"
    return str(escape(cut))
