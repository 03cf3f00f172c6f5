"""The provider interface: verify a request, read its event, and describe how its sender behaves."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Protocol

from gateway.base.model import Envelope, RepeatPolicy

Headers = Mapping[str, str]
"""Header names in lower case. Values are decoded as latin-1, so that any
byte can be represented.
"""

Key = Any
"""Verification key: bytes, or a public key of `cryptography`. It is made from a secret, once."""

SECRET_BYTES: Final = 24
REFUSED: Final = 403
CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers that are never stored, for any provider."""


class Integrity(StrEnum):
    """How much of a request is proven to come from its sender."""

    WHOLE = "whole body"
    PART = "part"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Description of a provider, in words."""

    title: str
    scheme: str
    """How a request is verified."""
    docs: tuple[str, ...] = ()
    id: str = ""
    """Position of the event id in the request."""
    type: str = ""
    unsigned: tuple[str, ...] = ()
    """Which of `id` and `type` are not signed, so that a captured request could
    be sent with other ones.
    """
    handshake: tuple[str, ...] = ()
    batch: str | None = None
    vector: str = "none"
    """The vendor's code or documentation that produced the test vector."""
    notes: tuple[str, ...] = ()


class Incoming(NamedTuple):
    """An incoming request. A NamedTuple, because creating a frozen dataclass is slower."""

    headers: Headers
    body: bytes
    method: str = "POST"
    url: str = ""
    """Public URL with path and query, as the sender calls it. Set only
    for providers that use it.
    """


class Verified(NamedTuple):
    """Result of a successful verification."""

    key: int
    """Index of the key that verified the request."""
    signed_at_s: float | None = None
    """Time of signing by the sender's clock, in unix seconds, or None if no time is signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Which bodies a sender can honestly send again under another event id.

    The route's policy applies to the types whose bodies cannot repeat, because they carry a time or
    an id that changes with each event. Repeats of all other types are accepted and flagged.
    """

    unique: frozenset[str] | None = None
    """The only types whose bodies cannot repeat. None means all types except `honest`."""
    honest: frozenset[str] = frozenset()
    """Types whose bodies can repeat, as globs over the type or its part before the first dot."""
    has_one_type: bool = False
    """Whether a body always has the same type, so that the same body under
    a second type is forged.
    """

    def can_repeat(self, type: str) -> bool:
        if self.unique is not None:
            return type not in self.unique
        family = type.partition(".")[0]
        return any(fnmatchcase(type, g) or fnmatchcase(family, g) for g in self.honest)


class Greeting(NamedTuple):
    """Response to a handshake. A handshake is not an event."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


class Acknowledgement(NamedTuple):
    """Response that the sender expects for an accepted event."""

    status: int = 200
    body: bytes | None = None
    """None means our own JSON body with the status of the event."""


OWN_WORDS: Final = Acknowledgement()


class Signed(NamedTuple):
    """A request as the provider itself would send it."""

    headers: dict[str, str]
    body: bytes
    url: str = ""


class Verify(Protocol):
    """Verify a request. Raises BadSignature or StaleTimestamp."""

    def __call__(
        self,
        incoming: Incoming,
        *,
        keys: Sequence[Key],
        now: datetime,
        tolerance: timedelta | None,
    ) -> Verified: ...


class Read(Protocol):
    """Read id, type, account and time from a verified request. Raises
    BadPayload if one is missing.
    """

    def __call__(self, incoming: Incoming) -> Envelope: ...


class Sign(Protocol):
    """Build the request that the provider itself would send."""

    def __call__(
        self, body: bytes, *, secret: bytes, id: str, type: str, now: datetime, url: str = ""
    ) -> Signed: ...


class Greet(Protocol):
    """Return the response to a handshake, or None if the request is not one.

    The key is None if the sender is not verified. Nothing is signed for such a sender.
    """

    def __call__(self, incoming: Incoming, *, key: Key) -> Greeting | None: ...


Columns = Mapping[str, tuple[tuple[str, ...], ...]]
"""Key paths into the payload from which each field of an `Envelope` is read."""


class GreetUnverified(Protocol):
    """Return the response to a handshake that no secret of the route proves, or
    None for any other request.
    """

    def __call__(self, incoming: Incoming, *, now: datetime) -> Greeting | None: ...


class Drafts(NamedTuple):
    """Builder of sample bodies for a described sender."""

    example: str
    """A type, shown as an example in messages."""
    expected: str
    """Description of valid types."""
    fits: Callable[[str], bool]
    make: Callable[[str, datetime], tuple[str, bytes]]
    """Return the id and the body of an event of this type."""
    is_form: bool
    """Whether bodies are forms instead of JSON."""


def make_secret() -> str:
    """Return a development secret for a provider that accepts any text."""
    return f"whsec_{secrets.token_hex(SECRET_BYTES)}"


def read_text_key(secret: bytes) -> Key:
    """Return the secret unchanged, for a provider that uses it as the key."""
    return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One kind of sender, described as data.

    Providers with equal data are equal: the functions built from the data are not compared.
    """

    name: str
    verify: Verify = field(compare=False)
    read: Read = field(compare=False)
    sign: Sign = field(compare=False)
    redelivery: timedelta
    """How long after the first delivery the sender can deliver the same event again."""
    retries: bool
    """Whether the sender retries by itself after a 503."""
    max_body: int
    tolerance: timedelta | None
    """Default tolerance for signed timestamps, or None if the sender signs no time."""
    repeats: Repeats | None = None
    """Which bodies can honestly repeat under another event id, for senders that sign neither id nor
    time. None disables the guard against repeated bodies.
    """
    keyed_by_digest: bool = False
    """Whether the digest of the body is the event id, at least if the sender gave none. An
    identical body is then a duplicate within the route's `dedup_window`.
    """
    bodies_repeat: bool = False
    """Whether two events of such a sender can have identical bodies."""
    proof: Callable[[Incoming], bytes] | None = None
    """Return the signed bytes of a verified event if they are not its body. The guard against
    repeated bodies rejects these bytes under another id. None means the body.
    """
    is_queue: bool = False
    """Whether the provider is a queue: it has no sender, and handlers and
    programs publish its jobs.
    """
    read_key: Callable[[bytes], Key] = field(default=read_text_key, compare=False)
    """Make the verification key from a secret. Raises Unexpected, whose
    text never shows the secret.
    """
    make_secret: Callable[[], str] = field(default=make_secret, compare=False)
    """Make a development secret that can both sign and verify."""
    uses_url: bool = False
    """Whether the URL is signed or read. It is built only for such providers."""
    signs_url: bool = False
    """Whether the public URL must be known, exactly as the sender calls it."""
    parses_first: bool = False
    """Whether a body must be parsed before it is verified, which takes many
    times as long as a digest.
    """
    split: Callable[[Incoming], Sequence[Incoming]] | None = field(default=None, compare=False)
    """Split a verified batch request into one request per event."""
    greet: Greet | None = field(default=None, compare=False)
    """Answer a handshake in a verified request."""
    greet_unverified: GreetUnverified | None = field(default=None, compare=False)
    """Answer a handshake by POST that is unsigned, or signed with a published key, and nothing
    else. Its sender remains unknown.
    """
    greet_by_get: Greet | None = field(default=None, compare=False)
    """Answer a handshake by GET or HEAD, which is never signed. The key is
    its token, if it has one.
    """
    acknowledgement: Acknowledgement = OWN_WORDS
    refusal_status: int = REFUSED
    """Status code that the provider requires for a wrong signature."""
    credentials: frozenset[str] = CREDENTIALS
    """Headers that are never stored."""
    headers: frozenset[str] = frozenset()
    """Headers that the scheme reads, apart from credentials. They are kept with rejected requests,
    whatever their names are.
    """
    tells_livemode: bool = False
    """Whether its events say if they are live or test events."""
    wants_token: bool = False
    """Whether a handshake carries a token, for which the route has `verify_token`."""
    columns: Columns = field(default_factory=dict, compare=False)
    """Payload paths from which fields of an `Envelope` are read. A path that a route redacts must
    not be stored in a column either. Fields read from headers or the URL are not included.
    """
    drafts: Drafts | None = field(default=None, compare=False)
    """None if samples are rendered from templates."""
    integrity: Integrity = Integrity.WHOLE
    facts: Facts | None = None
    """Shown by `gateway providers`. None for a queue, which has no sender."""

    def repeat_policy(
        self, first_type: str, route_policy: RepeatPolicy, *, type: str | None = None
    ) -> RepeatPolicy | None:
        """Return the policy for the bytes of an event of `first_type` under another event id.

        Nothing in the new request can make the policy more lenient. `type` is the type in the new
        request, from an unsigned header. If the sender has one type per body, a type other than
        `first_type` is a forgery.
        """
        if self.repeats is None:
            return None
        if type not in (None, first_type) and self.repeats.has_one_type:
            return route_policy
        return RepeatPolicy.FLAG if self.repeats.can_repeat(first_type) else route_policy
