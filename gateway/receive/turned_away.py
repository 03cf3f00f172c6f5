"""A rejected request, held in memory until it is stored."""

from datetime import datetime
from typing import Final, NamedTuple

from starlette.types import Scope

from gateway.providers import Headers
from gateway.receive.request import path_and_query

LONGEST_PATH: Final = 1000
LONGEST_AGENT: Final = 64


class UnexaminedRequest(NamedTuple):
    """A rejected request with the data at hand. Its cause is examined later, elsewhere."""

    route: str
    """Empty if no route has the path."""
    at: datetime
    code: str
    reason: str
    scope: Scope
    headers: Headers
    body: bytes | None
    """None if the body was not received, or is too large to be kept."""
    body_bytes: int | None
    address: str | None
    shadow: bool = False
    """Whether the request was accepted all the same."""
    verified_by: str | None = None
    """The secret under which it was verified: for an item of an accepted batch, or a duplicate."""

    @property
    def sender(self) -> str:
        """A key for requests that are likely of the same sender.

        It includes the user agent, since all clients share one address behind a proxy that is not
        configured.
        """
        agent = self.headers.get("user-agent", "")[:LONGEST_AGENT]
        return f"{self.address or '-'} {agent}"

    @property
    def method(self) -> str:
        return str(self.scope["method"])[:LONGEST_AGENT]

    @property
    def path(self) -> str:
        """The path with its query, as received."""
        return path_and_query(self.scope)


def measure(headers: Headers, body: bytes | None) -> int | None:
    """Return the size of the body, or its announced size if it was not read."""
    if body is not None:
        return len(body)
    announced = headers.get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) <= 18 else None
