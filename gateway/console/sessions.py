"""Authentication and authorization: tokens, sessions, and a rate limit for wrong tokens."""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import orjson

from gateway.base.secrets import Secret

SESSION_S: Final = 12 * 3600
"""Session lifetime: about one shift. After that, the user must present the token again."""

LONGEST_NAME: Final = 60
LONGEST_COOKIE: Final = 1024
NONCE_BYTES: Final = 12
PURPOSE: Final = b"gateway console session 2"
KEY_ROUNDS: Final = 200_000
"""Takes a tenth of a second, once per process."""


class Role(StrEnum):
    """The permissions of a session."""

    ADMIN = "admin"
    READER = "reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleUser:
    """The user of a console session."""

    name: str
    role: Role
    session: str = ""
    """Unique id of the session. Empty if the console requires no login."""
    until: datetime | None = None

    @property
    def may_act(self) -> bool:
        return self.role is Role.ADMIN

    @property
    def actor(self) -> str:
        """The name for the audit log."""
        return f"{self.name} (console)" if self.name else "console"


class Access:
    """Issues and verifies sessions.

    A session is valid in every process with the same tokens, and ends if one of them is changed.
    """

    def __init__(
        self,
        *,
        admin: Secret | None,
        reader: Secret | None,
        is_open: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = {
            role: token
            for role, token in ((Role.ADMIN, admin), (Role.READER, reader))
            if token is not None
        }
        self.is_open = is_open and not self._tokens
        """Whether no login is required: a `gateway up` on a loopback address without a token."""
        self._key = _session_key(self._tokens.values()) if self._tokens else secrets.token_bytes()
        self._clock = clock

    @property
    def is_off(self) -> bool:
        return not self._tokens and not self.is_open

    @property
    def highest(self) -> Role | None:
        """The highest role that has a token.

        A session of this role gains nothing by guessing another token.
        """
        return next(iter(self._tokens), None)

    def enter(self, token: str, name: str) -> str | None:
        """Return a new session if the token is valid, or else None."""
        given = token.encode("utf-8", "replace")
        role: Role | None = None
        for known, secret in self._tokens.items():  # all of them, in constant time each
            if hmac.compare_digest(_hashed(given), _hashed(secret.reveal())):
                role = role or known
        if role is None:
            return None
        shown = "".join(filter(str.isprintable, name)).strip()[:LONGEST_NAME]
        content = [role, shown, int(self._clock()) + SESSION_S, secrets.token_hex(NONCE_BYTES)]
        body = urlsafe_b64encode(orjson.dumps(content)).decode()
        return f"{body}.{self._sign('session', body)}"

    def recognise(self, session: str | None) -> ConsoleUser | None:
        """Return the user of a session, or None if it is not valid or has expired."""
        if self.is_open:
            return ConsoleUser(name="", role=Role.ADMIN)
        if session is None or len(session) > LONGEST_COOKIE or not session.isascii():
            return None
        body, _, signature = session.partition(".")
        if not hmac.compare_digest(self._sign("session", body), signature):
            return None
        role, name, until, nonce = orjson.loads(urlsafe_b64decode(body))
        if until < self._clock() or role not in self._tokens:
            return None
        ends_at = datetime.fromtimestamp(until, UTC)
        return ConsoleUser(name=name, role=Role(role), session=nonce, until=ends_at)

    def remember(self) -> str:
        """Return a signed value for the cookie of a browser that has logged in.

        Such a browser has its own count of wrong tokens, so wrong tokens from
        elsewhere do not delay it.
        """
        nonce = secrets.token_hex(NONCE_BYTES)
        return f"{nonce}.{self._sign('browser', nonce)}"

    def known_browser(self, mark: str | None) -> str | None:
        """Return the id of a browser that has logged in before, or None."""
        if mark is None or len(mark) > LONGEST_COOKIE or not mark.isascii():
            return None
        nonce, _, signature = mark.partition(".")
        is_ours = hmac.compare_digest(self._sign("browser", nonce), signature)
        return nonce if is_ours else None

    def _sign(self, kind: str, body: str) -> str:
        """Sign for one purpose, so that a browser cookie is not valid as a session."""
        return hmac.digest(self._key, f"{kind} {body}".encode(), "sha256").hex()


def _session_key(tokens: Iterable[Secret]) -> bytes:
    """Derive the session key from all tokens, so that no other secret has to be stored or shared.

    The derivation is slow, because a reader could otherwise guess the admin token offline, with the
    signature of their own session.
    """
    hashes = b"".join(_hashed(token.reveal()) for token in tokens)
    return hashlib.pbkdf2_hmac("sha256", hashes, PURPOSE, KEY_ROUNDS)


def _hashed(value: bytes) -> bytes:
    """Hash to a fixed length, so that a comparison does not leak the length either."""
    return hashlib.sha256(value).digest()


FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
FREE_TRIES: Final = 3
FORGOTTEN_S: Final = 3600.0
MOST_ADDRESSES: Final = 1000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    until: float = 0.0


class LoginBackoff:
    """Backoff for wrong tokens: after a few of them an address must wait, twice as long each time.

    The failures are forgotten after an hour without one. The number of addresses is bounded: a
    client that uses more of them gains little against a token that cannot be guessed. The address
    None is shared by all clients behind a proxy and never waits, because the wait would sooner or
    later hit the legitimate user.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()

    def wait_s(self, address: Hashable | None) -> float:
        """Return how many seconds this address still has to wait."""
        failures = self._failures.get(address)
        return 0.0 if failures is None else max(0.0, failures.until - self._clock())

    def failed(self, address: Hashable | None) -> None:
        if address is None:
            return
        now = self._clock()
        failures = self._failures.pop(address, None)
        if failures is None or now - failures.until > FORGOTTEN_S:
            failures = _Failures()
        failures.count += 1
        tries = failures.count - FREE_TRIES
        wait_s = min(FIRST_WAIT_S * 2**tries, LONGEST_WAIT_S) if tries >= 0 else 0.0
        failures.until = now + wait_s
        self._failures[address] = failures
        while len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: Hashable | None) -> None:
        self._failures.pop(address, None)
