"""The payload examples of npm @octokit/webhooks-examples."""

import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "samples" / "octokit" / "webhooks-examples-7.6.1.json.xz"


class Example(NamedTuple):
    """One payload, and the event name under which GitHub sends it."""

    event: str
    payload: dict[str, Any]

    @property
    def type(self) -> str:
        action = self.payload.get("action")
        return self.event if action is None else f"{self.event}.{action}"

    @property
    def body(self) -> bytes:
        return json.dumps(self.payload).encode()


def examples() -> list[Example]:
    """All of them; no two have the same bytes."""
    found = [Example(*one) for one in json.loads(lzma.decompress(FILE.read_bytes()))]
    return list({one.body: one for one in found}.values())
