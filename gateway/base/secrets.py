"""Secrets by reference: the configuration contains `env:NAME` or `file:/path`, never a secret."""

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, Self

from gateway.base.errors import GatewayError
from gateway.base.problems import Unexpected

LARGEST_FILE_BYTES: Final = 64 * 1024
BYTE_ORDER_MARK: Final = "\ufeff"
NAMES: Final = {
    " ": "a space",
    "\t": "a tab",
    "\r": "a carriage return",
    "\n": "a newline",
    BYTE_ORDER_MARK: "a byte order mark",
}
LITERAL: Final = "a literal value (not shown)"
REFERENCE_EXPECTED: Final = "a reference: env:NAME (in capitals) or file:/path"
SIGNING: Final = "the signing secret in it, and nothing else"
BEARER: Final = "the queue's bearer token in it, and nothing else"
API_KEY: Final = "Stripe's API key in it, and nothing else (a restricted or a test key will do)"
HANDSHAKE: Final = "the token that the sender's handshake shows, and nothing else"
HOOK_KEY: Final = "GitHub's token, or the App's private key, in it, and nothing else"
REFERENCE_PATTERN: Final = (
    r"env:[A-Z_][A-Z0-9_]*|file:[^\s\x00-\x1f](?:[^\x00-\x1f]*[^\s\x00-\x1f])?"
)
"""Names must be in capitals, so that a secret pasted after `env:` is not printed as a name."""
BEARER_PATTERN: Final = r"[\x21-\x7e]{16,512}"
BEARER_EXPECTED: Final = "16 to 512 visible ASCII characters, such as `openssl rand -hex 32`"
"""A token that cannot be guessed and that fits in a header."""


class SecretUnusable(GatewayError):
    """A secret exists, but no signature of a sender could ever match it."""

    def __init__(self, *, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(f"found {found}; expected {expected}")


class SecretMissing(SecretUnusable):
    """A secret is not set, does not exist, or is empty. In development one can be generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """The location of a secret, and when it expires."""

    kind: Literal["env", "file"]
    target: str
    expires_at: datetime | None = None
    """From then on, nothing is verified with the secret. None means that it does not expire."""

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse a reference. Invalid text may be a secret, so the error does not show it."""
        if not isinstance(text, str) or not re.fullmatch(REFERENCE_PATTERN, text):
            raise Unexpected(found=LITERAL, expected=REFERENCE_EXPECTED)
        kind, _, target = text.partition(":")
        return cls(kind="env" if kind == "env" else "file", target=target)

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}"


@dataclass(frozen=True, slots=True)
class Secret:
    """The bytes of a secret, which no log and no traceback can show by accident."""

    _value: bytes = field(repr=False)
    ref: SecretRef | None = None
    """The location of the secret, for code that has to name it."""

    def reveal(self) -> bytes:
        return self._value

    def __repr__(self) -> str:
        return "Secret(not shown)"


def resolve(
    ref: SecretRef,
    environ: Mapping[str, str],
    development: Mapping[str, str],
    *,
    expected: str = SIGNING,
) -> bytes:
    """Return the bytes of a secret.

    A generated development secret is used only if the configured one is missing.
    """
    try:
        return _checked(ref, _file_text(ref) if ref.kind == "file" else _env_text(ref, environ))
    except SecretMissing as error:
        if str(ref) not in development:
            raise SecretMissing(found=error.found, expected=expected) from None
        return development[str(ref)].encode()


def resolve_token(
    ref: SecretRef, environ: Mapping[str, str], development: Mapping[str, str]
) -> bytes:
    """Return the bytes of a bearer token."""
    token = resolve(ref, environ, development, expected=BEARER)
    if not re.fullmatch(BEARER_PATTERN.encode(), token):
        raise SecretUnusable(found=f"{ref}, which is no such token", expected=BEARER_EXPECTED)
    return token


def is_borne(authorization: str, tokens: Iterable[Secret]) -> bool:
    """Return whether an Authorization header bears one of these tokens.

    Compares in constant time.
    """
    return find_borne(authorization, [token.reveal() for token in tokens]) is not None


def find_borne(authorization: str, tokens: Iterable[bytes]) -> int | None:
    """Return the index of the token that an Authorization header bears, or None.

    Every token is compared, each in constant time.
    """
    scheme, _, given = authorization.partition(" ")
    sent = given.strip().encode("latin-1", "replace")
    matches = [hmac.compare_digest(sent, token) for token in tokens]
    return matches.index(True) if scheme.lower() == "bearer" and any(matches) else None


def _env_text(ref: SecretRef, environ: Mapping[str, str]) -> str:
    if ref.target not in environ:
        raise SecretMissing(found=f"{ref}, which is not set", expected=SIGNING)
    return environ[ref.target]


def _file_text(ref: SecretRef) -> str:
    try:
        text = _file_bytes(ref).decode()
    except UnicodeDecodeError:
        # The exception quotes the file's bytes, so it must not become the context of our error.
        text = None
    if text is None:
        raise SecretUnusable(found=f"{ref}, which is not UTF-8", expected="a secret in UTF-8")
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _file_bytes(ref: SecretRef) -> bytes:
    path = Path(ref.target).absolute()
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SecretMissing(found=f"{ref}, but there is no {path}", expected=SIGNING) from None
    except OSError as error:
        reason = f"which cannot be read ({error.strerror})"
        raise SecretUnusable(found=f"{ref}, {reason}", expected=SIGNING) from None
    if len(content) > LARGEST_FILE_BYTES:
        raise SecretUnusable(found=f"{ref}, over 64KiB", expected=SIGNING)
    return content


def _checked(ref: SecretRef, text: str) -> bytes:
    """Reject secrets that no signature can match: empty, or with accidental characters."""
    if not text.strip():
        raise SecretMissing(found=f"{ref}, which is empty", expected=SIGNING)
    for end, char in (("ends", text[-1]), ("begins", text[0])):
        if char.isspace() or char == BYTE_ORDER_MARK:
            found = f"{ref}, which {end} with {NAMES.get(char, repr(char))}"
            raise SecretUnusable(found=found, expected="the secret without anything around it")
    if any("\ud800" <= char <= "\udfff" for char in text):  # not UTF-8, from os.environ
        raise SecretUnusable(found=f"{ref}, which is not UTF-8", expected="a secret in UTF-8")
    return text.encode()
