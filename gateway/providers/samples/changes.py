"""Possible changes of an object between two of its events, as tables of the provider's values."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway.base.times import from_unix, parse_time

Document = dict[str, Any]

STRIPE_STATUSES: Final[Mapping[str, Mapping[str, str]]] = {
    "charge": {"pending": "succeeded"},
    "checkout.session": {"open": "complete"},
    "dispute": {
        "warning_needs_response": "warning_under_review",
        "warning_under_review": "warning_closed",
        "needs_response": "under_review",
        "under_review": "won",
    },
    "invoice": {"draft": "open", "open": "paid", "uncollectible": "paid"},
    "payment_intent": {
        "requires_payment_method": "requires_confirmation",
        "requires_confirmation": "requires_action",
        "requires_action": "processing",
        "requires_capture": "succeeded",
        "processing": "succeeded",
    },
    "payout": {"pending": "in_transit", "in_transit": "paid", "paid": "failed"},
    "quote": {"draft": "open", "open": "accepted"},
    "refund": {"requires_action": "pending", "pending": "succeeded", "succeeded": "failed"},
    "setup_intent": {
        "requires_payment_method": "requires_confirmation",
        "requires_confirmation": "requires_action",
        "requires_action": "processing",
        "processing": "succeeded",
    },
    "subscription": {
        "incomplete": "active",
        "trialing": "active",
        "active": "past_due",
        "past_due": "active",
        "unpaid": "active",
        "paused": "active",
    },
    "subscription_schedule": {"not_started": "active", "active": "completed"},
}
"""The next status of each kind of object. A status without an entry is final."""

GITHUB_STATES: Final[Mapping[str, Mapping[str, str]]] = {
    "conclusion": {"success": "failure", "failure": "success", "cancelled": "success"},
    "deployment_status": {
        "queued": "in_progress",
        "pending": "in_progress",
        "in_progress": "success",
        "success": "inactive",
        "failure": "inactive",
        "error": "inactive",
    },
    "review": {
        "approved": "changes_requested",
        "changes_requested": "approved",
        "commented": "approved",
    },
    "status": {"pending": "success", "success": "failure", "failure": "success"},
}
"""The next `state` of each part, and the next conclusion of a finished run under `conclusion`."""

_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "account": ("payouts_enabled",),
    "customer": ("delinquent",),
    "price": ("active",),
    "product": ("active",),
}
_COUNTS: Final[Mapping[str, str]] = {
    "invoice": "attempt_count",
    "payment_method": "exp_year",
    "subscription": "quantity",
}
_MAIN_AMOUNTS: Final = ("amount", "amount_total", "total", "unit_amount")
_STRIPE_TEXTS: Final = ("description", "name", "nickname")
_GITHUB_TEXTS: Final = ("title", "display_title", "body", "description")
_GITHUB_COUNTS: Final = ("comments", "commits", "additions", "run_attempt", "stargazers_count")
_GITHUB_TIMES: Final = ("updated_at", "pushed_at", "submitted_at", "starred_at")
_SURROUNDINGS: Final = frozenset({"repository", "organization", "sender"})
_MORE_CENTS: Final = 250


def change_stripe(before: Document, *, status_is_open: bool) -> Document:
    """Return the object in a later state. Its status changes only if the event's type allows it."""
    after = dict(before)
    kind = str(before.get("object"))
    if status_is_open:
        after |= _step(before, "status", STRIPE_STATUSES.get(kind, {}))
    after |= {key: not before[key] for key in _FLAGS.get(kind, ()) if before.get(key) in (0, 1)}
    after |= {key: f"{before[key]} (2)" for key in _STRIPE_TEXTS if _is_text(before.get(key))}
    if _is_text(before.get("email")):
        after["email"] = f"new.{before['email']}"
    main = next((before[key] for key in _MAIN_AMOUNTS if _is_positive(before.get(key))), None)
    if main is not None:
        after = _replace_amount(after, main, main + _MORE_CENTS)
    if kind in _COUNTS:
        after = _count_up(after, _COUNTS[kind])
    return revise(after)


def revise(before: Document) -> Document:
    """Return the object with a revision number in its metadata, so that any two states differ."""
    metadata = before.get("metadata")
    if not isinstance(metadata, dict):
        return before
    revision = str(metadata.get("revision", "1"))
    following = int(revision) + 1 if revision.isdecimal() else 2
    return before | {"metadata": metadata | {"revision": str(following)}}


def change_github(before: Document, event: str) -> Document:
    """Return the payload of a later event of the same issue, pull request, run or branch."""
    after = before | _step(before, "state", GITHUB_STATES.get(event, {}))
    for key, part in before.items():
        if isinstance(part, dict) and key not in _SURROUNDINGS:
            after[key] = _change_part(part, key)
    if event in ("push", "pull_request"):
        after = _push_on(after)
    if after == before and isinstance(before.get("repository"), dict):
        after["repository"] = _change_part(before["repository"], "repository")
    return after


def _change_part(before: Document, name: str) -> Document:
    after = before | _step(before, "conclusion", GITHUB_STATES["conclusion"])
    after |= _step(before, "state", GITHUB_STATES.get(name, {}))
    after |= {key: f"{before[key]} (2)" for key in _GITHUB_TEXTS if _is_text(before.get(key))}
    return after | {
        key: before[key] + 1 for key in _GITHUB_COUNTS if isinstance(before.get(key), int)
    }


def _push_on(before: Document) -> Document:
    """Add a new commit to the head of the pull request or of the branch."""
    head = before.get("after") or _dig(before, "pull_request", "head", "sha")
    if not isinstance(head, str) or not head.strip("0"):
        return before
    after: Document = _replace_text(before, head, secrets.token_hex(len(head) // 2))
    if "before" in after:
        after["before"] = head
    return after | ({"created": False} if "created" in after else {})


def _dig(node: Any, *path: str) -> Any:
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def touch(document: Document, moment: datetime) -> Document:
    """Set `updated_at` and similar times to this moment, in the payload and in its parts."""
    own = {key: write_time(document[key], moment) for key in _GITHUB_TIMES if document.get(key)}
    parts = {key: touch(value, moment) for key, value in document.items() if _is_part(key, value)}
    return document | own | parts


def newest_time(document: Document) -> datetime | None:
    """Return the latest time among `updated_at` and similar fields."""
    times = [read_time(document.get(key)) for key in _GITHUB_TIMES]
    times += [newest_time(value) for key, value in document.items() if _is_part(key, value)]
    return max((time for time in times if time is not None), default=None)


def read_time(value: object) -> datetime | None:
    """Parse a time as the providers write it: unix seconds or ISO 8601."""
    try:
        if isinstance(value, int):
            return from_unix(value)
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def write_time(like: object, moment: datetime) -> str | int:
    """Format a moment in the notation of `like`."""
    if isinstance(like, int):
        return int(moment.timestamp())
    precision = "milliseconds" if "." in str(like) else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _is_part(key: str, value: object) -> bool:
    return isinstance(value, dict) and key not in ("organization", "sender")


def _step(before: Document, key: str, following: Mapping[str, str]) -> Document:
    value = before.get(key)
    return {key: following[value]} if isinstance(value, str) and value in following else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _replace_amount(node: Any, old: int, new: int) -> Any:
    """Replace an amount everywhere, so that equal amounts stay equal."""
    if isinstance(node, list):
        return [_replace_amount(item, old, new) for item in node]
    if not isinstance(node, dict):
        return node
    texts = {str(old): str(new), f"{old}.0": f"{new}.0"}
    after = {key: _replace_amount(value, old, new) for key, value in node.items()}
    for key, value in node.items():
        if "amount" in key or "total" in key:
            if value == old and _is_positive(value):
                after[key] = new
            elif isinstance(value, str) and value in texts:
                after[key] = texts[value]
    return after


def _count_up(node: Any, counter: str) -> Any:
    if isinstance(node, list):
        return [_count_up(item, counter) for item in node]
    if not isinstance(node, dict):
        return node
    after = {key: _count_up(value, counter) for key, value in node.items()}
    return after | ({counter: node[counter] + 1} if isinstance(node.get(counter), int) else {})


def _replace_text(node: Any, old: str, new: str) -> Any:
    if isinstance(node, list):
        return [_replace_text(item, old, new) for item in node]
    if isinstance(node, dict):
        return {key: _replace_text(value, old, new) for key, value in node.items()}
    return node.replace(old, new) if isinstance(node, str) else node
