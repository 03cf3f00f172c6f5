"""Who may look, and who may order: tokens, sessions, and how fast tokens can be tried."""

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

from gateway.secrets import Secret

SESSION_S: Final = 12 * 3600
"""A shift. Whoever comes back later shows the token again."""

LONGEST_NAME: Final = 60
LONGEST_COOKIE: Final = 1024
NONCE_BYTES: Final = 12
PURPOSE: Final = b"gateway console session 2"
KEY_ROUNDS: Final = 200_000
"""A tenth of a second, once per process."""


class Role(StrEnum):
    """What a session may do."""

    ADMIN = "admin"
    READER = "reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Whoever looks at the console."""

    name: str
    role: Role
    session: str = ""
    """What tells it from others; none where nobody is asked."""
    until: datetime | None = None

    @property
    def may_order(self) -> bool:
        return self.role is Role.ADMIN

    @property
    def actor(self) -> str:
        """For the audit log."""
        return f"{self.name} (console)" if self.name else "console"


class Access:
    """Knows tokens and sessions. A session holds for every process that has the same tokens, and
    ends where one of them is changed."""

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
        """Whether nobody is asked: on the loopback of a `gateway up` that has no token."""
        self._key = _session_key(self._tokens.values()) if self._tokens else secrets.token_bytes()
        self._clock = clock

    @property
    def is_off(self) -> bool:
        return not self._tokens and not self.is_open

    @property
    def highest(self) -> Role | None:
        """Of the roles that there are: whoever has it has no other token to guess."""
        return next(iter(self._tokens), None)

    def enter(self, token: str, name: str) -> str | None:
        """A session for whoever shows a token; None for everyone else."""
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

    def recognise(self, session: str | None) -> Visitor | None:
        """Who holds this session, if it is one of ours and has not run out."""
        if self.is_open:
            return Visitor(name="", role=Role.ADMIN)
        if session is None or len(session) > LONGEST_COOKIE or not session.isascii():
            return None
        body, _, signature = session.partition(".")
        if not hmac.compare_digest(self._sign("session", body), signature):
            return None
        role, name, until, nonce = orjson.loads(urlsafe_b64decode(body))
        if until < self._clock() or role not in self._tokens:
            return None
        ends_at = datetime.fromtimestamp(until, UTC)
        return Visitor(name=name, role=Role(role), session=nonce, until=ends_at)

    def remember(self) -> str:
        """A mark for a browser that was let in: wrong tokens from elsewhere are not held against
        whoever comes back with it."""
        nonce = secrets.token_hex(NONCE_BYTES)
        return f"{nonce}.{self._sign('browser', nonce)}"

    def known_browser(self, mark: str | None) -> str | None:
        """Which browser this is, if it was let in once."""
        if mark is None or len(mark) > LONGEST_COOKIE or not mark.isascii():
            return None
        nonce, _, signature = mark.partition(".")
        is_ours = hmac.compare_digest(self._sign("browser", nonce), signature)
        return nonce if is_ours else None

    def _sign(self, kind: str, body: str) -> str:
        """For one use: what is good for another is no session."""
        return hmac.digest(self._key, f"{kind} {body}".encode(), "sha256").hex()


def _session_key(tokens: Iterable[Secret]) -> bytes:
    """From all tokens: nothing else need be kept or shared. Slowly: a reader could try at home
    with which token of the admin his own session would have its signature."""
    hashes = b"".join(_hashed(token.reveal()) for token in tokens)
    return hashlib.pbkdf2_hmac("sha256", hashes, PURPOSE, KEY_ROUNDS)


def _hashed(value: bytes) -> bytes:
    """Of one length, whatever the value's: a comparison then tells nothing of that either."""
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


class Patience:
    """After a few wrong tokens an address waits, twice as long each time, until there has been
    none for an hour.

    The addresses are bounded: whoever has more of them than are remembered has not gained much
    against a token that nobody guesses. None is nobody's own address, for which no one waits: it
    would be the person with the token, sooner or later.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()

    def wait_s(self, address: Hashable | None) -> float:
        """How long this address still has to wait."""
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
