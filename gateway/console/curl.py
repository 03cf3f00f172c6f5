"""A request as a curl command that sends the same bytes from any shell that has $'...'."""

import shlex
from collections.abc import Mapping
from typing import Final

from gateway.console.rendering import HIDDEN, plain

OF_THE_CONNECTION: Final = frozenset(
    {"content-length", "host", "connection", "accept-encoding", "transfer-encoding", "expect"}
)
"""What curl says itself."""


def as_curl(url: str, headers: Mapping[str, str], body: str) -> str | None:
    """None for what no command can carry: a NUL."""
    if "\x00" in body:
        return None
    lines = [f"curl {_quote(url)}"]
    for name, value in headers.items():
        if name not in OF_THE_CONNECTION:
            lines.append(f"  -H {_quote(f'{name}: {value}' if value else f'{name};')}")
    # Not --data: a body that begins with @ would name a file of whoever pastes it.
    lines.append(f"  --data-raw {_quote(body)}")
    return " \\\n".join(lines)


def _quote(text: str) -> str:
    """What does not show is written out: a page would show it otherwise than it is, a signature
    would not fit any more, and a terminal would act on it."""
    if plain(text) == text and "\n" not in text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\012")
    return f"$'{escaped.translate(_WRITTEN_OUT)}'"


_WRITTEN_OUT: Final = {
    code: "".join(f"\\{byte:03o}" for byte in chr(code).encode()) for code in HIDDEN
}
"""All at once, by what is fast: no sender is answered meanwhile."""
