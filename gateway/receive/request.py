"""A request as it was received."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.types import Receive, Scope

from gateway.base.errors import UnsupportedCoding, UnsupportedEncoding
from gateway.providers import Headers

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A request, with as much as has been read of it."""

    scope: Scope
    receive: Receive
    headers: Headers
    body: bytes | None = None
    received_at: datetime = LONG_AGO


def path_and_query(scope: Scope) -> str:
    path: str = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def local_path(scope: Scope) -> str:
    """Return the decoded path below the one where this application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def read_headers(scope: Scope) -> dict[str, str]:
    pairs = scope["headers"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    return headers if len(headers) == len(pairs) else join_repeated(pairs)


def join_repeated(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Join repeated header fields into a list, and never use only the first or the last of them.

    A proxy in front may have checked the other one. No valid signature, timestamp or token is such
    a list. https://www.rfc-editor.org/rfc/rfc9110.html#section-5.3
    """
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: ", ".join(several) for name, several in values.items()}


def check_encoding(headers: Headers) -> None:
    """Check that the body is not encoded: signatures cover the bytes before any encoding."""
    content = headers.get("content-encoding", "").strip()
    if content and content.lower() != "identity":
        raise UnsupportedEncoding(f"content-encoding: found {content[:60]!a}; expected none")
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer.lower() != "chunked":
        raise UnsupportedCoding(f"transfer-encoding: found {transfer[:60]!a}; expected chunked")
