"""JSON as a tree that folds without a script."""

from typing import Any, Final

import orjson
from markupsafe import Markup, escape

from gateway.console.rendering import plain

MOST_NODES: Final = 4000
"""More make a page that no browser likes; the raw body is beside it."""

MOST_CHARACTERS: Final = 256 * 1024
LONGEST_TEXT: Final = 4000
"""Of one value; the rest of it is in the raw body."""

DEEPEST: Final = 32
OPEN_TO: Final = 3


class _TooMuch(Exception):
    """More nodes than are drawn."""


def draw_tree(document: Any) -> Markup | None:
    """None where there is too much of it to be drawn."""
    drawing = _Drawing()
    try:
        drawing.add("", document, 0)
    except _TooMuch:
        return None
    return Markup("".join(drawing.pieces))  # noqa: S704 (ours, and what is not is escaped)


class _Drawing:
    """As text, each value escaped where it is put in: there are thousands of them, and `Markup`
    takes ten times as long to put one in."""

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
    """Escaped, and no longer than is shown."""
    more = len(text) - LONGEST_TEXT
    cut = plain(text) if more <= 0 else f"{plain(text[:LONGEST_TEXT])}… and {more:,} characters"
    return str(escape(cut))
