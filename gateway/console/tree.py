"""JSON as a tree that folds without a script."""

from typing import Any, Final

import orjson
from markupsafe import Markup

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
    return Markup("").join(drawing.pieces)


class _Drawing:
    def __init__(self) -> None:
        self.pieces: list[Markup] = []
        self._nodes = 0
        self._characters = 0

    def add(self, name: str, value: Any, depth: int) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES or self._characters > MOST_CHARACTERS:
            raise _TooMuch
        label = Markup('<span class="k">{}</span> ').format(_cut(name)) if name else Markup("")
        if not isinstance(value, dict | list) or not value:
            self._leaf(label, _scalar(value))
        elif depth >= DEEPEST:
            self._leaf(label, Markup("<i>deeper than is shown</i>"))
        else:
            self._branch(label, value, depth)

    def _leaf(self, label: Markup, shown: Markup) -> None:
        self.pieces.append(Markup('<div class="leaf">{}{}</div>').format(label, shown))
        self._characters += len(self.pieces[-1])

    def _branch(self, label: Markup, value: dict[str, Any] | list[Any], depth: int) -> None:
        is_object = isinstance(value, dict)
        self.pieces.append(
            Markup('<details{}><summary>{}<span class="n">{}</span></summary>').format(
                Markup(" open") if depth < OPEN_TO else "",
                label,
                f"{{{len(value)}}}" if is_object else f"[{len(value)}]",
            )
        )
        self._characters += len(self.pieces[-1])
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            self.add(str(key), item, depth + 1)
        self.pieces.append(Markup("</details>"))


def _scalar(value: Any) -> Markup:
    kind = {str: "s", bool: "b", type(None): "b"}.get(type(value), "d")
    text = repr(value) if isinstance(value, float) else orjson.dumps(value).decode()
    return Markup('<bdi class="{}">{}</bdi>').format(kind, _cut(text))


def _cut(text: str) -> str:
    more = len(text) - LONGEST_TEXT
    return plain(text) if more <= 0 else f"{plain(text[:LONGEST_TEXT])}… and {more:,} characters"
