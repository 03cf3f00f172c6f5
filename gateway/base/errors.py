"""Every error that the gateway raises, arranged by who must act.

GatewayError
├── ConfigInvalid        the operator must fix a file or a variable; lists every problem; exit 2
├── RequestRejected      the request is at fault; carries `status` and `code`; nothing was stored
│   ├── BadSignature · StaleTimestamp · Unauthorized · RepeatedBody · Duplicate · NotFromHere
│   │   └── TokenMissing
│   ├── BadPayload · BadJob · TooLarge · BodyTimeout · TooMany · Overloaded
│   └── UnsupportedEncoding · UnsupportedCoding
├── StorageUnavailable   the operator must fix it; the sender is asked to retry
│   └── SpoolUnavailable
├── ProviderFailed       a provider's API rejects a request, or does not answer; one line says why
│   └── RateLimited      the request has to be repeated later
├── CannotOpen           stored data cannot be read
│   ├── PayloadGone      the payload was deleted: no delivery runs without it
│   ├── KeyMissing       the key is not in the ring: the operator must put it back
│   └── SealBroken       the data was changed, or moved from another row
├── SchemaMismatch       the ledger's schema and this code do not fit: migrate, or upgrade the code
├── EngineFailed         an embedded Postgres or Redis could not be found, started or stopped
├── CommandFailed        a command failed; one line says why; exit 1
│   ├── NotFound         it named an object that does not exist
│   └── BadRequest       its arguments cannot be read
├── TransitionRefused    an operator requested a transition that the state forbids
├── PushFailed           a service did not accept a request; it is retried
│   └── AddressRefused   its address is one to which requests are not allowed
├── LeaseLost            another run owns the delivery now; this run must change nothing
└── HandlerSignal        a handler's decision: Retry · Defer · Reject
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the errors that it came from, and those of a group, each of them once.

    Two errors can be causes of each other: `raise a from b`, where b came from a.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
        if cause := found.__cause__ or found.__context__:
            waiting.append(cause)


class GatewayError(Exception):
    """Base class of all errors below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem in the configuration, with all that is needed to fix it without a search."""

    file: str
    key: str
    found: str
    expected: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.key}: found {self.found}; expected {self.expected}"


class ConfigInvalid(GatewayError):
    """The configuration cannot be used. Carries every problem at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class RequestRejected(GatewayError):
    """The request is rejected. `reason` is for the log; a webhook's sender sees only `code`."""

    status: ClassVar[int]
    code: ClassVar[str]
    counts_against_address: ClassVar[bool] = True
    """Whether the request counts towards the limit of rejected requests per address. False if only
    a verified sender can cause the error."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class BadSignature(RequestRejected):
    """The signature is missing, malformed or wrong."""

    status = 403
    code = "BAD_SIGNATURE"


class StaleTimestamp(RequestRejected):
    """The signed time is too long ago or too far in the future."""

    status = 403
    code = "STALE_TIMESTAMP"


class Unauthorized(RequestRejected):
    """The bearer token is missing or wrong."""

    status = 401
    code = "UNAUTHORIZED"


class TokenMissing(Unauthorized):
    """There is no Authorization header, so no guess at a token: a browser, or a health check."""

    counts_against_address = False


class RepeatedBody(RequestRejected):
    """A repeated body: the same signed bytes under a new delivery id."""

    status = 403
    code = "REPEATED_BODY"
    counts_against_address = False


class Duplicate(RequestRejected):
    """The body was accepted before, from a sender without event ids. Answered 200, and kept."""

    status = 200
    code = "DUPLICATE"
    counts_against_address = False


class BadPayload(RequestRejected):
    """The request is verified, but has no id or type, or is not the JSON that it claims to be."""

    status = 400
    code = "BAD_PAYLOAD"
    counts_against_address = False


class BadJob(RequestRejected):
    """The job was published with a key, a type or a delay that cannot be used."""

    status = 400
    code = "BAD_REQUEST"
    counts_against_address = False


class TooLarge(RequestRejected):
    """The body is larger than the route allows."""

    status = 413
    code = "TOO_LARGE"


class UnsupportedEncoding(RequestRejected):
    """The body was compressed, and the signature covers the bytes before or after compression."""

    status = 415
    code = "UNSUPPORTED_ENCODING"


class UnsupportedCoding(RequestRejected):
    """The transfer encoding of the body is not `chunked`."""

    status = 501
    code = "UNSUPPORTED_ENCODING"


class BodyTimeout(RequestRejected):
    """The body did not arrive within `receive_within`."""

    status = 408
    code = "TIMEOUT"


class NotFromHere(RequestRejected):
    """The sender's address is not in the route's allow list."""

    status = 403
    code = "ADDRESS_REFUSED"


class TooMany(RequestRejected):
    """The request is verified, but exceeds the route's `limit`."""

    status = 429
    code = "RATE_LIMITED"
    counts_against_address = False

    def __init__(self, reason: str, *, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(reason)


class Overloaded(RequestRejected):
    """The request was shed because the process has no capacity left.

    The sender sees `UNAVAILABLE`.
    """

    status = 503
    code = "SHED"


class StorageUnavailable(GatewayError):
    """The event could not be made durable."""


class SpoolUnavailable(StorageUnavailable):
    """The event could not be kept on the local disk either."""


class ProviderFailed(GatewayError):
    """A provider's API rejected a request, did not answer, or sent an invalid answer."""


class RateLimited(ProviderFailed):
    """The provider's rate limit demands a longer wait than a run allows."""


class CannotOpen(GatewayError):
    """An encrypted payload cannot be read, or is no longer stored."""


class PayloadGone(CannotOpen):
    """An event that is to be run has lost its payload, which should never happen."""


class KeyMissing(CannotOpen):
    """The key of an encrypted value is not in the ring. `key_id` names it."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(
            f"it is encrypted under key {key_id}, which is not among `keys`: "
            "put that key back, behind the first, until `gateway rekey` has run"
        )


class SealBroken(CannotOpen):
    """An encrypted value was changed or cut, or belongs to another row."""


class SchemaMismatch(GatewayError):
    """The database's schema and this code do not fit together."""


class EngineFailed(GatewayError):
    """An embedded engine could not be found, started or stopped."""


class CommandFailed(GatewayError):
    """A command could not be carried out."""


class NotFound(CommandFailed):
    """A command named an object that does not exist."""


class BadRequest(CommandFailed):
    """The arguments of a command cannot be read."""


class TransitionRefused(GatewayError):
    """The state of a delivery forbids the requested transition."""


class PushFailed(GatewayError):
    """Another service did not acknowledge a request."""


class AddressRefused(PushFailed):
    """The address of another service is one to which requests are not allowed."""


class LeaseLost(GatewayError):
    """The delivery is leased by another run now, or settled."""


class StatementRefused(GatewayError):
    """A handler's SQL was refused: it would end the transaction, or break the session."""


class TransactionReadOnly(GatewayError):
    """A handler made its transaction read only, so the delivery cannot be completed in it."""


class TransactionEnded(GatewayError):
    """A handler ended its transaction, so its effect may be committed without its delivery."""


class HandlerSignal(GatewayError):
    """Raised by a handler to decide the outcome of its delivery."""


class Retry(HandlerSignal):
    """Run the delivery again; burns an attempt. Without `after`, the policy's backoff applies."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after
        super().__init__(reason or "the handler asked for a retry")


class Defer(HandlerSignal):
    """Run the delivery again later; burns no attempt."""

    def __init__(self, reason: str = "", *, after: timedelta | float) -> None:
        self.after = after if isinstance(after, timedelta) else timedelta(seconds=after)
        super().__init__(reason or "the handler deferred")


class Reject(HandlerSignal):
    """Give up at once: the delivery becomes a dead letter."""


class NotSent(GatewayError):
    """Raise it in a function that `ctx.once` calls if the effect certainly was not done.

    The delivery fails and is retried by its policy, and the retry makes the call again.
    """
