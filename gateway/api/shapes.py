"""The results of operations, with the same field names as the `--json` output of the commands."""

from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from gateway.ledger.bulk import BulkOperation
from gateway.operations.encryption import KeyState


class EventRow(TypedDict):
    """An event in a listing."""

    received_at: datetime
    route: str
    event_id: str
    type: str
    account: str | None
    livemode: bool | None
    occurred_at: datetime | None
    provider: str
    object_id: str | None
    repeat_of: str | None
    spooled: bool
    reconciled: bool
    unverified: bool
    """Accepted in development although its signature was wrong."""
    payload_kept: bool
    deliveries: dict[str, int]
    note: str | None


class DeadRow(TypedDict):
    """A dead letter in a listing."""

    delivery_id: int
    route: str
    event_id: str
    type: str
    account: str | None
    handler: str
    status: str
    attempts: int
    error: str | None
    created_at: datetime
    finished_at: datetime


class Attempt(TypedDict):
    """One run of a delivery."""

    delivery_id: int
    number: int
    started_at: datetime
    finished_at: datetime
    outcome: str
    error: str | None
    encrypted: bool
    """Whether part of the error is encrypted, which only `reveal` shows."""


class EffectRow(TypedDict):
    """An external side effect of a delivery."""

    delivery_id: int
    name: str
    """The name. An effect that happens once per key includes its key: receipt per cs_1."""
    key: str | None
    """The key of an effect that happens once per key (`per`); on an encrypted route a digest."""
    status: str
    """begun, unknown (a run continued without its outcome) or done."""
    made_by: int | None
    """The delivery of another event with the same key that made the call, if there is one."""
    made_by_event: str | None
    """The event of `made_by`, until it is pruned."""
    calls: int
    error: str | None
    """How the last call ended if its outcome is unknown: class and HTTP status."""
    result: str | None
    begun_at: datetime
    unknown_at: datetime | None
    finished_at: datetime | None
    encrypted: bool
    """Whether only `reveal` shows the result."""


class UnknownEffect(TypedDict):
    """An effect of unknown outcome in a listing."""

    delivery_id: int
    name: str
    route: str
    event_id: str
    type: str
    account: str | None
    handler: str
    delivery_status: str
    calls: int
    error: str | None
    """How the last call ended: class and HTTP status. None if no error was seen."""
    begun_at: datetime
    unknown_at: datetime
    can_retry: bool
    """Whether the event still has its payload."""


class ResolvedEffects(TypedDict):
    """The effects of a delivery that were retried or confirmed."""

    delivery_id: int
    effects: list[str]


class DeliveryAudit(TypedDict):
    """An audit entry of a delivery."""

    delivery_id: int
    at: datetime
    actor: str
    action: str
    effect: str | None
    reason: str | None
    bulk_id: int | None


class DeliveryDetail(TypedDict):
    """A delivery with its history."""

    delivery_id: int
    route: str
    event_id: str
    handler: str
    status: str
    attempts: int
    error: str | None
    created_at: datetime
    due_at: datetime | None
    leased_at: datetime | None
    finished_at: datetime | None
    order_key: str | None
    held_by: int | None
    held_by_status: str | None
    runs_alone: bool
    attempt_log: list[Attempt]
    effects: list[EffectRow]
    audit: list[DeliveryAudit]


class ErasureRow(TypedDict):
    """The erasure of an event: actor, time and reason."""

    at: datetime
    actor: str
    reason: str | None


class EventDetail(TypedDict):
    """An event with its deliveries."""

    route: str
    event_id: str
    provider: str
    type: str
    account: str | None
    object_id: str | None
    livemode: bool | None
    occurred_at: datetime | None
    received_at: datetime
    digest: str
    headers: dict[str, str] | None
    body: str | None
    body_base64: str | None
    redacted: str | None
    repeat_of: str | None
    spooled: bool
    reconciled: bool
    unverified: bool
    """Accepted in development although its signature was wrong."""
    verified_by: str | None
    clock_s: float | None
    key_id: str | None
    """The key under which it is encrypted; null if it is not encrypted."""
    encrypted: bool
    """Whether only `reveal` shows headers and body."""
    erased: ErasureRow | None
    deliveries: list[DeliveryDetail]


class AuditRow(TypedDict):
    """An audit entry."""

    id: int
    at: datetime
    actor: str
    action: str
    delivery_id: int | None
    effect: str | None
    bulk_id: int | None
    route: str | None
    handler: str | None
    event_id: str | None
    reason: str | None


class Group(TypedDict):
    """Deliveries with a common error, or events with a common type."""

    count: int
    route: str
    handler: str
    type: str | None
    error: str | None
    first_at: datetime
    last_at: datetime
    delivery_id: int | None
    effect: str | None
    """The name of the effect."""


class CauseOfRejection(TypedDict):
    """A common cause of dead letters. The number is null until the sweep has assigned one."""

    cause: int | None
    route: str | None
    handler: str | None
    error: str | None
    count: int
    first_at: datetime
    last_at: datetime


class Causes(TypedDict):
    """The number of dead letters, and their most frequent causes."""

    as_of: datetime
    total: int
    causes: list[CauseOfRejection]


class Groups(TypedDict):
    """The matching rows, largest groups first."""

    as_of: datetime
    total: int
    without_payload: int
    groups: list[Group]


class BulkAnswer(Groups):
    """The matching rows, and the bulk operation. It is null after a dry run or without a match."""

    bulk: BulkOperation | None
    effects_kept: int
    """For a replay: effects of the matching deliveries that were done and are not made again."""
    effects_unknown: int
    """Effects of unknown outcome: left unchanged, or made again with `effects: retry`."""


class ReplayedAnswer(TypedDict):
    """A delivery that was replayed, or would be (dry_run)."""

    delivery_id: int
    effects: Literal["keep", "retry"]
    effects_kept: int
    """Effects that were done and are not made again."""
    effects_unknown: int
    """Effects of unknown outcome: left unchanged, or made again with `effects: retry`."""


class PrunedAnswer(TypedDict):
    """The counts of one piece of a prune, and the cursor of the next piece."""

    keys: int
    payloads: int
    dead: int
    audit: int
    days: int
    looked_at: int
    left_alone: list[str]
    next: str | None


class EventKey(TypedDict):
    """The key of an event."""

    route: str
    event_id: str


class ErasedAnswer(TypedDict):
    """The counts of one piece of an erasure, and the cursor of the next piece."""

    events: int
    pending: int
    dead: int
    running: list[EventKey]
    rejected: int
    """Rejected requests that name the subject."""
    spooled: int
    next: str | None


class RekeyedAnswer(TypedDict):
    """The counts of one piece of a rekey, and the cursor of the next piece."""

    events: int
    attempts: int
    effects: int
    rejected: int
    past: int
    """Events stored before their route was encrypted, with everything that belongs to them."""
    busy: int
    """Events of those that are in flight, and were skipped."""
    broken: list[str]
    """Data that cannot be decrypted, and was left unchanged."""
    keys: list[KeyState]
    """The current state of the keys."""
    next: str | None


class RejectedRow(TypedDict):
    """A rejected request in a listing."""

    id: int
    route: str
    """Empty if no route has the path."""
    at: datetime
    code: str
    cause: str
    detail: str
    shadow: bool
    """Accepted nevertheless: in development, by a route with `enforce: false`."""
    copies: int
    """The number of identical duplicates that it stands for; 1 for other rejected requests."""
    method: str
    path: str
    address: str | None
    body_bytes: int | None
    body_kept: bool
    released_at: datetime | None
    released_as: list[str] | None


class RejectedDetail(RejectedRow):
    """A rejected request with its stored contents."""

    headers: dict[str, str] | None
    digest: str | None
    body: str | None
    body_base64: str | None
    """The exact bytes, if the body is not text."""
    redacted: str | None
    """The redacted fields, or the reason why all of the body is redacted."""
    key_id: str | None
    """The key under which it is encrypted. Headers and body are not shown then."""


class RejectedGroup(TypedDict):
    """Rejected requests with a common cause."""

    count: int
    """The number of stored requests."""
    route: str
    code: str
    cause: str
    detail: str
    """The detail of the latest request."""
    senders: int
    first_at: datetime
    last_at: datetime
    id: int
    """The id of the latest request."""
    releasable: int
    released: int


class ReleasedRow(TypedDict):
    """The result of a release."""

    id: int
    outcome: Literal["accepted", "duplicate", "ignored", "valid", "refused", "already"]
    route: str
    event_ids: list[str]
    detail: str | None
