"""Every error that the gateway raises, told apart by who must act.

GatewayError
├── ConfigInvalid        the operator must fix a file or a variable; lists every problem; exit 2
├── RequestRejected      the sender is wrong; carries `status` and `code`; nothing was stored
│   ├── BadSignature · StaleTimestamp · Unauthorized · Replayed · Duplicate · NotFromHere
│   │   └── TokenMissing
│   ├── BadPayload · BadJob · TooLarge · BodyTimeout · TooMany · Overloaded
│   └── UnsupportedEncoding · UnsupportedCoding
├── StorageUnavailable   ours to fix; the sender is told to come back
│   └── SpoolUnavailable
├── ProviderFailed       a provider's API refuses us, or does not answer; one line says why
│   └── RateLimited      it is to be asked again later
├── CannotOpen           what is kept, or should be, cannot be read
│   ├── PayloadGone      it is not there any more: nothing is run without it
│   ├── KeyMissing       its key is not in the ring: the operator must put it back
│   └── SealBroken       it was changed, or moved from another row
├── SchemaMismatch       the ledger's schema and this code do not fit: migrate, or upgrade the code
├── EngineFailed         an embedded Postgres or Redis could not be found, started or stopped
├── CommandFailed        a command could not do what was asked; one line says why; exit 1
│   ├── NotFound         it named something that is not there
│   └── BadRequest       it was asked in words that cannot be read
├── TransitionRefused    an operator asked for a move that the state machine forbids
├── PushFailed           a service did not take what was pushed to it; it is tried again
│   └── AddressRefused   it stands where nothing is sent to
├── LeaseLost            another worker owns the delivery now; this run must leave no trace
└── HandlerSignal        a handler's decision: Retry · Defer · Reject
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar


class GatewayError(Exception):
    """Base of everything below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong in the configuration, said so that it can be fixed without a search."""

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
    """The request is refused. `reason` is for our log; a webhook's sender sees only `code`."""

    status: ClassVar[int]
    code: ClassVar[str]
    counts_against_address: ClassVar[bool] = True
    """Whether the limit of refused requests counts it. Not if only a verified sender can have
    caused it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class BadSignature(RequestRejected):
    """Missing, malformed or wrong signature."""

    status = 403
    code = "BAD_SIGNATURE"


class StaleTimestamp(RequestRejected):
    """Signed, but too long ago or too far in the future."""

    status = 403
    code = "STALE_TIMESTAMP"


class Unauthorized(RequestRejected):
    """Missing or wrong bearer token."""

    status = 401
    code = "UNAUTHORIZED"


class TokenMissing(Unauthorized):
    """No Authorization header at all, so no guess at a token: a browser, or a health check."""

    counts_against_address = False


class Replayed(RequestRejected):
    """The same signed bytes under a fresh delivery id."""

    status = 403
    code = "REPLAYED"
    counts_against_address = False


class Duplicate(RequestRejected):
    """A body that was accepted before, of a sender without event ids; answered 200, and kept."""

    status = 200
    code = "DUPLICATE"
    counts_against_address = False


class BadPayload(RequestRejected):
    """Verified, but without an id or a type, or not the JSON that it claims to be."""

    status = 400
    code = "BAD_PAYLOAD"
    counts_against_address = False


class BadJob(RequestRejected):
    """Published with a key, a type or a delay that cannot be used."""

    status = 400
    code = "BAD_REQUEST"
    counts_against_address = False


class TooLarge(RequestRejected):
    """More body bytes than the route allows."""

    status = 413
    code = "TOO_LARGE"


class UnsupportedEncoding(RequestRejected):
    """A body that was compressed, while the signature is over the bytes before or after."""

    status = 415
    code = "UNSUPPORTED_ENCODING"


class UnsupportedCoding(RequestRejected):
    """A body that was encoded for the transfer in another way than by chunks."""

    status = 501
    code = "UNSUPPORTED_ENCODING"


class BodyTimeout(RequestRejected):
    """The body did not arrive within `receive_within`."""

    status = 408
    code = "TIMEOUT"


class NotFromHere(RequestRejected):
    """From an address that the route does not list."""

    status = 403
    code = "ADDRESS_REFUSED"


class TooMany(RequestRejected):
    """Verified, but more than the route's `limit`."""

    status = 429
    code = "RATE_LIMITED"
    counts_against_address = False

    def __init__(self, reason: str, *, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(reason)


class Overloaded(RequestRejected):
    """Shed because the process has no capacity left. The sender sees `UNAVAILABLE`."""

    status = 503
    code = "SHED"


class StorageUnavailable(GatewayError):
    """The event could not be made durable."""


class SpoolUnavailable(StorageUnavailable):
    """Nor could it be kept on the local disk meanwhile."""


class ProviderFailed(GatewayError):
    """A provider's API refused what we asked, did not answer, or answered nonsense."""


class RateLimited(ProviderFailed):
    """The provider wants to be left alone for longer than a run waits."""


class CannotOpen(GatewayError):
    """What is kept encrypted cannot be read, or is not kept any more."""


class PayloadGone(CannotOpen):
    """An event that is to be run has lost its payload, as it never should."""


class KeyMissing(CannotOpen):
    """Its key is not in the ring. `key_id` names it."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(
            f"it is encrypted under key {key_id}, which is not among `keys`: "
            "put that key back, behind the first, until `gateway rekey` has run"
        )


class SealBroken(CannotOpen):
    """It was changed or cut, or is that of another row."""


class SchemaMismatch(GatewayError):
    """The database's schema and this code do not fit together."""


class EngineFailed(GatewayError):
    """An embedded engine could not be found, started or stopped."""


class CommandFailed(GatewayError):
    """A command could not do what was asked."""


class NotFound(CommandFailed):
    """A command named something that is not there."""


class BadRequest(CommandFailed):
    """A command was asked in words that cannot be read."""


class TransitionRefused(GatewayError):
    """A delivery may not make the move that was asked for."""


class PushFailed(GatewayError):
    """Another service did not acknowledge what was sent to it."""


class AddressRefused(PushFailed):
    """Another service stands at an address to which nothing is sent."""


class LeaseLost(GatewayError):
    """The delivery is leased by someone else now, or settled."""


class StatementRefused(GatewayError):
    """A handler's SQL was refused: it would end the transaction, or break the session."""


class TransactionReadOnly(GatewayError):
    """A handler made its transaction read only, so the delivery cannot be completed in it."""


class TransactionEnded(GatewayError):
    """A handler ended its transaction, so its effect may be committed without its delivery."""


class HandlerSignal(GatewayError):
    """Raised by a handler to decide what becomes of its delivery."""


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
