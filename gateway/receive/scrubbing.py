"""Remove credentials from rejected requests before they are stored.

Such a request may have been meant for another system.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from gateway.providers.provider import CREDENTIALS

NOT_KEPT: Final = "(not kept)"
FEWEST_BYTES: Final = 6
"""Shorter secrets would be found everywhere by chance."""

LONGEST_VALUE: Final = 4096

_WORDS: Final = frozenset(
    {
        *("authorization", "auth", "token", "secret", "password", "passwd", "pwd", "bearer"),
        *("cookie", "cookie2", "apikey", "credential", "credentials", "session", "jwt", "key"),
    }
)
_SEPARATORS: Final = re.compile(r"[-_.]")
_PARAMETER: Final = re.compile(r"([?&])([^=&]+)=([^&]*)")
_HARMLESS: Final = frozenset({"idempotency-key", "sec-websocket-key"})


def is_credential(name: str) -> bool:
    """Return whether a header or parameter of this name most likely carries a credential."""
    name = name.lower()
    if name in _HARMLESS:
        return False
    return name in CREDENTIALS or not _WORDS.isdisjoint(_SEPARATORS.split(name))


class Scrubber:
    """Remove credentials, and the secrets of this gateway wherever they occur."""

    def __init__(
        self,
        secrets: Iterable[bytes],
        headers: Iterable[str] = (),
        harmless: Iterable[str] = (),
    ) -> None:
        self._secrets = tuple(secret for secret in secrets if len(secret) >= FEWEST_BYTES)
        self._texts = tuple(secret.decode("latin-1") for secret in self._secrets)
        self._headers = frozenset(headers)
        """Headers that carry a token, whatever their name."""
        self._harmless = frozenset(harmless)
        """Headers that a signature scheme reads as part of an event, whatever their name."""

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return all headers, with the values of credentials replaced."""
        return {name: self._value(name, value) for name, value in headers.items()}

    def body(self, body: bytes | None) -> bytes | None:
        """Return the body, or None if it contains one of our secrets."""
        if body is None or any(secret in body for secret in self._secrets):
            return None
        return body

    def path(self, path: str) -> str:
        """Return the path with its query, in which credentials are replaced."""
        if self._has_secret(path):
            return path.partition("?")[0] if not self._has_secret(path.partition("?")[0]) else "/"
        return _PARAMETER.sub(_parameter, path)

    def _value(self, name: str, value: str) -> str:
        is_secret = name in self._headers or (name not in self._harmless and is_credential(name))
        if is_secret or self._has_secret(value):
            return NOT_KEPT
        return value[:LONGEST_VALUE].replace("\0", "")

    def _has_secret(self, text: str) -> bool:
        return any(secret in text for secret in self._texts)


def _parameter(match: re.Match[str]) -> str:
    mark, name, value = match.groups()
    return f"{mark}{name}={NOT_KEPT if is_credential(name) else value}"
