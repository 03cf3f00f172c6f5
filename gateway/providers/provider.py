"""What a provider is: how to verify a request, what to read from it, and what its sender does."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Protocol

from gateway.model import Envelope, ReplayPolicy

Headers = Mapping[str, str]
"""Header names in lower case, values decoded as latin-1, so that any byte has a place."""

Key = Any
"""What verifies: bytes, or a public key of `cryptography`. Made from a secret, once."""

SECRET_BYTES: Final = 24
REFUSED: Final = 403
CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers that are never stored, whoever sends them."""


class Integrity(StrEnum):
    """How much of a request is proven to come from its sender."""

    WHOLE = "whole body"
    PART = "part"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What people want to know of a provider, in words."""

    title: str
    scheme: str
    """How a request is verified."""
    docs: tuple[str, ...] = ()
    id: str = ""
    """Where the event's id is."""
    type: str = ""
    unsigned: tuple[str, ...] = ()
    """Which of id and type a forger could change in a captured request."""
    handshake: tuple[str, ...] = ()
    batch: str | None = None
    vector: str = "none"
    """By whose code the request was made with which the tests verify."""
    notes: tuple[str, ...] = ()


class Incoming(NamedTuple):
    """A request as it came in. (A frozen dataclass is made slower.)"""

    headers: Headers
    body: bytes
    method: str = "POST"
    url: str = ""
    """As its sender calls it: the public URL with path and query. Only for those who use it."""


class Verified(NamedTuple):
    """What was proven."""

    key: int
    """The index of the key under which it was."""
    signed_at_s: float | None = None
    """When, by the sender's clock, in unix seconds; None where no time is signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Which bodies a sender can honestly send again under another event id.

    The route's policy applies to the types whose bodies cannot repeat, because they carry a time or
    an id that changes with each event. Repeats of all other types are accepted and flagged.
    """

    unique: frozenset[str] | None = None
    """The only types whose bodies cannot repeat; None: all types but `honest`."""
    honest: frozenset[str] = frozenset()
    """Types whose bodies can repeat, as globs over the type or its part before the first dot."""
    has_one_type: bool = False
    """Whether the sender never sends one body under two types: a second type proves a forgery."""

    def can_repeat(self, type: str) -> bool:
        if self.unique is not None:
            return type not in self.unique
        family = type.partition(".")[0]
        return any(fnmatchcase(type, g) or fnmatchcase(family, g) for g in self.honest)


class Greeting(NamedTuple):
    """The answer to a handshake, which is no event."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


class Acknowledgement(NamedTuple):
    """What the sender wants to see when its event is taken."""

    status: int = 200
    body: bytes | None = None
    """None: our own JSON, which says what became of it."""


OWN_WORDS: Final = Acknowledgement()


class Signed(NamedTuple):
    """A request as the provider itself would send it."""

    headers: dict[str, str]
    body: bytes
    url: str = ""


class Verify(Protocol):
    """Refuses a forged or stale request."""

    def __call__(
        self,
        incoming: Incoming,
        *,
        keys: Sequence[Key],
        now: datetime,
        tolerance: timedelta | None,
    ) -> Verified: ...


class Read(Protocol):
    """Reads id, type, account and time from a verified request; refuses one that has none."""

    def __call__(self, incoming: Incoming) -> Envelope: ...


class Sign(Protocol):
    """What the provider itself would send."""

    def __call__(
        self, body: bytes, *, secret: bytes, id: str, type: str, now: datetime, url: str = ""
    ) -> Signed: ...


class Greet(Protocol):
    """The answer to a handshake; None where the request is none. Without a key nothing is signed:
    who asks is not known then."""

    def __call__(self, incoming: Incoming, *, key: Key) -> Greeting | None: ...


Columns = Mapping[str, tuple[tuple[str, ...], ...]]
"""By field of an `Envelope`: the steps to each place in the payload that has a part in it."""


class GreetUnverified(Protocol):
    """The answer to a handshake that no secret of the route proves; None for all other requests."""

    def __call__(self, incoming: Incoming, *, now: datetime) -> Greeting | None: ...


class Drafts(NamedTuple):
    """How bodies are made up that such a sender could have sent."""

    example: str
    """A type, to show one."""
    expected: str
    """What a type looks like, in words."""
    fits: Callable[[str], bool]
    make: Callable[[str, datetime], tuple[str, bytes]]
    """Id and body of an event of a type."""
    is_form: bool
    """Whether bodies are forms, and not JSON."""


def make_secret() -> str:
    """One for development, for a provider that takes any text."""
    return f"whsec_{secrets.token_hex(SECRET_BYTES)}"


def read_text_key(secret: bytes) -> Key:
    """The key of a provider that takes the secret as it is."""
    return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One kind of sender, as data. Two are the same whose data are, whatever was made of them."""

    name: str
    verify: Verify = field(compare=False)
    read: Read = field(compare=False)
    sign: Sign = field(compare=False)
    redelivery: timedelta
    """How long after the first delivery the sender can deliver the same event again."""
    retries: bool
    """Whether the sender comes back by itself after a 503."""
    max_body: int
    tolerance: timedelta | None
    """The default for signed timestamps; None where the sender signs no time."""
    repeats: Repeats | None = None
    """Which bodies can honestly come again under another event id, for senders that sign neither
    id nor time. None: no replay guard."""
    keyed_by_digest: bool = False
    """Whether the digest of the body is an event's id, at least if the sender gave none. Then an
    identical body is a duplicate for as long as the route's `dedup_window`."""
    bodies_repeat: bool = False
    """Whether two events of such a sender can have identical bodies."""
    proof: Callable[[Incoming], bytes] | None = None
    """What is signed of a verified event, where that is not its body: what must not come again
    under another id. None: the body."""
    is_queue: bool = False
    """Whether there is no sender: its events are jobs, which handlers and programs publish."""
    read_key: Callable[[bytes], Key] = field(default=read_text_key, compare=False)
    """What verifies, from a secret; raises Unexpected, which shows nothing of it."""
    make_secret: Callable[[], str] = field(default=make_secret, compare=False)
    """One for development, with which can be signed and verified."""
    uses_url: bool = False
    """Whether the URL is signed, or read: it is put together only for those."""
    signs_url: bool = False
    """Whether the public URL must be known, as the sender calls it."""
    parses_first: bool = False
    """Whether a body must be parsed to be verified, which takes many times as long as a digest."""
    split: Callable[[Incoming], Sequence[Incoming]] | None = field(default=None, compare=False)
    """The events in a verified request that brings several, each as a request of its own."""
    greet: Greet | None = field(default=None, compare=False)
    """Looks for a handshake in a verified request."""
    greet_unverified: GreetUnverified | None = field(default=None, compare=False)
    """Answers a handshake by POST that is unsigned, or signed with a published key, and nothing
    else. Its sender stays unknown."""
    greet_by_get: Greet | None = field(default=None, compare=False)
    """Answers a handshake by GET or HEAD, which nobody signs: the key is its token, if any."""
    acknowledgement: Acknowledgement = OWN_WORDS
    refusal_status: int = REFUSED
    """What it must see when its signature is wrong."""
    credentials: frozenset[str] = CREDENTIALS
    """Headers that are never stored."""
    headers: frozenset[str] = frozenset()
    """Headers that a scheme reads, apart from credentials: rejected requests are kept with them,
    whatever their names are."""
    tells_livemode: bool = False
    """Whether it tells live events from test events."""
    wants_token: bool = False
    """Whether a handshake shows a token, for which the route has `verify_token`."""
    columns: Columns = field(default_factory=dict, compare=False)
    """Where in the payload the fields of an `Envelope` are read: what a route redacts must not be
    stored in a column either. Without those that are read from headers or the URL."""
    drafts: Drafts | None = field(default=None, compare=False)
    """None where samples are made from templates."""
    integrity: Integrity = Integrity.WHOLE
    facts: Facts | None = None
    """For `gateway providers`; none of a queue, which has no sender."""

    def replay_policy(
        self, first_type: str, route_policy: ReplayPolicy, *, type: str | None = None
    ) -> ReplayPolicy | None:
        """Return the policy for the bytes of an event of `first_type` under another event id.

        Nothing of the new request can make it more lenient. `type` is what the new request says, in
        an unsigned header: another type than the first one's is a forgery, if the sender has one
        type per body.
        """
        if self.repeats is None:
            return None
        if type not in (None, first_type) and self.repeats.has_one_type:
            return route_policy
        return ReplayPolicy.FLAG if self.repeats.can_repeat(first_type) else route_policy
