"""What operations answer, field by field: the same words as the commands' `--json`."""

from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from gateway.operate.keys import KeyState


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
    replay_of: str | None
    spooled: bool
    reconciled: bool
    unverified: bool
    """Taken in development although its signature was wrong."""
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
    """Whether there is more to the error, which only `reveal` shows."""


class Effect(TypedDict):
    """An outside effect of a delivery."""

    delivery_id: int
    name: str
    status: str
    """begun, unknown (a run went on without its outcome) or done."""
    calls: int
    error: str | None
    """How the last call ended, if its outcome is unknown: class and HTTP status."""
    result: str | None
    begun_at: datetime
    unknown_at: datetime | None
    finished_at: datetime | None
    encrypted: bool
    """Whether only `reveal` shows the result."""


class UnknownEffect(TypedDict):
    """An outside effect of unknown outcome in a listing."""

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
    """How the last call ended: class and HTTP status. None: no error was seen."""
    begun_at: datetime
    unknown_at: datetime
    can_retry: bool
    """Whether the event still has its payload."""


class ResolvedEffects(TypedDict):
    """The effects of a delivery that were retried or confirmed."""

    delivery_id: int
    effects: list[str]


class DeliveryAudit(TypedDict):
    """What someone did to a delivery."""

    delivery_id: int
    at: datetime
    actor: str
    action: str
    effect: str | None
    reason: str | None
    order_id: int | None


class DeliveryDetail(TypedDict):
    """A delivery with all that happened to it."""

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
    effects: list[Effect]
    audit: list[DeliveryAudit]


class Erasure(TypedDict):
    """Who had an event erased, when and why."""

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
    replay_of: str | None
    spooled: bool
    reconciled: bool
    unverified: bool
    """Taken in development although its signature was wrong."""
    verified_by: str | None
    clock_s: float | None
    key_id: str | None
    """The key under which it is kept; null where it is kept as it came."""
    encrypted: bool
    """Whether only `reveal` shows headers and body."""
    erased: Erasure | None
    deliveries: list[DeliveryDetail]


class AuditRow(TypedDict):
    """What someone did."""

    id: int
    at: datetime
    actor: str
    action: str
    delivery_id: int | None
    effect: str | None
    order_id: int | None
    route: str | None
    handler: str | None
    event_id: str | None
    reason: str | None


class PauseRow(TypedDict):
    """A pause; without a handler it is of the whole route."""

    route: str
    handler: str | None
    actor: str
    reason: str | None
    since: datetime


class PausedAnswer(TypedDict):
    """What a pause holds back."""

    route: str
    handler: str | None
    since: datetime
    is_new: bool
    running: int
    waiting: int


class ResumedAnswer(TypedDict):
    """What the end of a pause lets run, and which pauses are left."""

    route: str
    handler: str | None
    since: datetime
    waiting: int
    still_paused: list[PauseRow]


class Group(TypedDict):
    """Deliveries that have their error in common, or events that have their type."""

    count: int
    route: str
    handler: str
    type: str | None
    error: str | None
    first_at: datetime
    last_at: datetime
    delivery_id: int | None
    effect: str | None
    """The name of an outside effect."""


class Cause(TypedDict):
    """Of what some died; without a number where nobody has told it yet."""

    cause: int | None
    route: str | None
    handler: str | None
    error: str | None
    count: int
    first_at: datetime
    last_at: datetime


class Causes(TypedDict):
    """How many are dead, and of what the most."""

    as_of: datetime
    total: int
    causes: list[Cause]


class Groups(TypedDict):
    """What matches, the largest groups first."""

    as_of: datetime
    total: int
    without_payload: int
    groups: list[Group]


class OrderRow(TypedDict):
    """An order for everything that matches, and how far it has come."""

    order_id: int
    action: Literal["replay", "discard", "deliver", "retry_effects", "confirm_effects"]
    filter: dict[str, str]
    status: Literal["running", "stopped", "done"]
    is_idle: bool
    total: int
    moved: int
    skipped: int
    rate: int | None
    effects: Literal["keep", "retry"]
    """Of a replay: whether effects of unknown outcome are made again."""
    effects_kept: int
    """Effects of the replayed deliveries that were done, and are not made again."""
    effects_unknown: int
    actor: str
    reason: str | None
    began_at: datetime
    stepped_at: datetime
    finished_at: datetime | None
    resumed: int


class Ordered(Groups):
    """What matches, and the order for it; none where it was only counted, or nothing matches."""

    order: OrderRow | None
    effects_kept: int
    """Of a replay: effects of what matches that were done, and are not made again."""
    effects_unknown: int
    """Effects of unknown outcome: left as they are, or made again with `effects: retry`."""


class ReplayedAnswer(TypedDict):
    """A delivery that was replayed, or would be (dry_run)."""

    delivery_id: int
    effects: Literal["keep", "retry"]
    effects_kept: int
    """Its effects that were done, and are not made again."""
    effects_unknown: int
    """Its effects of unknown outcome: left as they are, or made again with `effects: retry`."""


class PrunedAnswer(TypedDict):
    """What a piece of a prune forgot, or would forget, and where the next one goes on."""

    keys: int
    payloads: int
    dead: int
    audit: int
    days: int
    looked_at: int
    left_alone: list[str]
    next: str | None


class EventKey(TypedDict):
    """Which event."""

    route: str
    event_id: str


class ErasedAnswer(TypedDict):
    """What a piece of an erasure took, or would take, and where the next one goes on."""

    events: int
    pending: int
    dead: int
    running: list[EventKey]
    rejected: int
    """Refused requests in which it is named."""
    spooled: int
    next: str | None


class RekeyedAnswer(TypedDict):
    """What a piece of a rekey did, and where the next one goes on."""

    events: int
    attempts: int
    effects: int
    rejected: int
    past: int
    """Events that were stored before their route was encrypted, with all that belongs to them."""
    busy: int
    """Those of them that run right now, and are left."""
    broken: list[str]
    """What does not open, and is left as it is."""
    keys: list[KeyState]
    """How things stand now."""
    next: str | None


class RejectedRow(TypedDict):
    """A refused request in a listing."""

    id: int
    route: str
    """Empty where no route has the path."""
    at: datetime
    code: str
    cause: str
    detail: str
    shadow: bool
    """Accepted all the same: in development, by a route with `enforce: false`."""
    copies: int
    """How many identical duplicates it stands for; 1 for anything else."""
    method: str
    path: str
    address: str | None
    body_bytes: int | None
    body_kept: bool
    released_at: datetime | None
    released_as: list[str] | None


class RejectedDetail(RejectedRow):
    """A refused request with what was kept of it."""

    headers: dict[str, str] | None
    digest: str | None
    body: str | None
    body_base64: str | None
    """The exact bytes, where they are no text."""
    redacted: str | None
    """What was taken out of the body, or why all of it was."""
    key_id: str | None
    """The key under which it is sealed: then neither headers nor body are shown."""


class RejectedGroup(TypedDict):
    """Refused requests that have their cause in common."""

    count: int
    """Of those that were kept."""
    route: str
    code: str
    cause: str
    detail: str
    """Of the latest one."""
    senders: int
    first_at: datetime
    last_at: datetime
    id: int
    """The latest one."""
    releasable: int
    released: int


class ReleasedRow(TypedDict):
    """What became of a refused request."""

    id: int
    outcome: Literal["accepted", "duplicate", "ignored", "valid", "refused", "already"]
    route: str
    event_ids: list[str]
    detail: str | None
