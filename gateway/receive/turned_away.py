"""A refused request as it came, held until it is written down."""

from datetime import datetime
from typing import Final, NamedTuple

from starlette.types import Scope

from gateway.providers import Headers

LONGEST_PATH: Final = 1000
LONGEST_AGENT: Final = 64


class TurnedAway(NamedTuple):
    """Only what is at hand: what it means is found out later, elsewhere."""

    route: str
    """Empty where no route has the path."""
    at: datetime
    code: str
    reason: str
    scope: Scope
    headers: Headers
    body: bytes | None
    """None where it never came, or is too large to be kept."""
    body_bytes: int | None
    address: str | None
    shadow: bool = False
    """Whether it was accepted all the same."""
    verified_by: str | None = None
    """The secret under which it was verified: an item of an accepted batch, or a duplicate."""

    @property
    def sender(self) -> str:
        """Who is likely the same: behind a proxy that nobody has named, all have one address."""
        agent = self.headers.get("user-agent", "")[:LONGEST_AGENT]
        return f"{self.address or '-'} {agent}"

    @property
    def method(self) -> str:
        return str(self.scope["method"])[:LONGEST_AGENT]

    @property
    def path(self) -> str:
        """With its query, as it came."""
        path = self.scope["raw_path"].decode("latin-1")
        query = self.scope["query_string"].decode("latin-1")
        return f"{path}?{query}" if query else path


def measure(headers: Headers, body: bytes | None) -> int | None:
    """How large a body was; what was announced, where it was not taken."""
    if body is not None:
        return len(body)
    announced = headers.get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) <= 18 else None
