"""Stripe: `t` and `v1` in one signature header, snapshot and thin events."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.base.errors import BadPayload, BadSignature, StaleTimestamp
from gateway.base.model import Envelope
from gateway.base.times import LATEST, from_unix, parse_iso
from gateway.providers.payload import check_text, describe, parse_object, require_text, text_at
from gateway.providers.provider import Facts, Headers, Incoming, Key, Provider, Signed, Verified
from gateway.providers.signature import hexdigest, match_hmac

_SIGNATURE: Final = "stripe-signature"
# Stripe sends one v1 per live secret, and a rolled secret lives for 24 hours at most. The bounds
# are far above that, and keep a hostile header from causing thousands of comparisons.
# https://docs.stripe.com/webhooks#roll-endpoint-secrets
_MAX_SIGNATURES: Final = 16
_MAX_HEADER_CHARS: Final = 4096
_MAX_TIME_DIGITS: Final = 12
# Stripe's libraries allow five minutes, https://docs.stripe.com/webhooks#replay-attacks
_TOLERANCE: Final = timedelta(minutes=5)
_LAST_SECOND: Final = int(LATEST.timestamp())


def verify(
    incoming: Incoming, *, keys: Sequence[Key], now: datetime, tolerance: timedelta | None
) -> Verified:
    """Verify the signature, then the timestamp."""
    signed_at, signatures = _parse_header(incoming.headers)
    # The signed text is `{t}.{body}`. The key is the whole secret as text, including `whsec_`.
    # https://docs.stripe.com/webhooks#verify-manually
    index = match_hmac(b"%b.%b" % (signed_at, incoming.body), signatures, keys)
    signed_at_s = int(signed_at)
    _check_time(signed_at_s, now, _TOLERANCE if tolerance is None else tolerance)
    return Verified(index, signed_at_s)


def _parse_header(headers: Headers) -> tuple[bytes, list[bytes]]:
    header = headers.get(_SIGNATURE)
    if header is None:
        raise BadSignature(f"no {_SIGNATURE} header")
    # Stripe never sends a space. A space means that the header was sent twice and joined.
    if len(header) > _MAX_HEADER_CHARS or not header.isascii() or " " in header:
        raise BadSignature(f"{_SIGNATURE}: too long, twice, or not ASCII")
    times: list[bytes] = []
    signatures: list[bytes] = []
    for item in header.encode("ascii").split(b","):
        scheme, equals, value = item.partition(b"=")
        if not equals:
            raise BadSignature(f"{_SIGNATURE}: an item is not key=value")
        # Ignore every scheme except v1, to prevent downgrades.
        # https://docs.stripe.com/webhooks#verify-manually
        if scheme == b"v1":
            signatures.append(value)
        elif scheme == b"t":
            times.append(value)
    return _only_time(times), _bounded(signatures)


def _only_time(times: Sequence[bytes]) -> bytes:
    if len(times) != 1:
        raise BadSignature(f"{_SIGNATURE}: {len(times)} timestamps; expected one")
    # Digits only: int() would also accept signs, spaces and underscores.
    if not times[0].isdigit() or len(times[0]) > _MAX_TIME_DIGITS:
        raise BadSignature(f"{_SIGNATURE}: the timestamp is not unix seconds")
    return times[0]


def _bounded(signatures: list[bytes]) -> list[bytes]:
    if not 1 <= len(signatures) <= _MAX_SIGNATURES:
        raise BadSignature(
            f"{_SIGNATURE}: {len(signatures)} v1 signatures; expected 1 to {_MAX_SIGNATURES}"
        )
    return signatures


def _check_time(signed_at_s: int, now: datetime, tolerance: timedelta) -> None:
    # In both directions: a far-future timestamp would keep a captured request valid for years.
    # Stripe signs each retry anew, so this check rejects no retry.
    # https://docs.stripe.com/webhooks#replay-attacks
    age_s = now.timestamp() - signed_at_s
    if abs(age_s) > tolerance.total_seconds():
        side = "ago" if age_s > 0 else "ahead"
        raise StaleTimestamp(
            f"signed {abs(age_s):.0f} s {side}; the tolerance is {tolerance.total_seconds():.0f} s"
        )


def read(incoming: Incoming) -> Envelope:
    """Read a snapshot or a thin event. Any other object raises BadPayload."""
    event = parse_object(incoming.body)
    kind = event.get("object")
    if kind == "event":
        return _read_snapshot(event)
    if kind == "v2.core.event":
        return _read_thin(event)
    raise BadPayload(f"`object`: found {describe(kind)}; expected event or v2.core.event")


def _read_snapshot(event: dict[str, Any]) -> Envelope:
    # `account` is the connected account in which the event happened, `created` is in unix seconds.
    # https://docs.stripe.com/api/events/object
    return Envelope(
        id=require_text(event, "id"),
        type=require_text(event, "type"),
        account=None if event.get("account") is None else require_text(event, "account"),
        livemode=_livemode(event),
        occurred_at=_from_seconds(event.get("created")),
        object_id=text_at(event, "data", "object", "id"),
    )


def _read_thin(event: dict[str, Any]) -> Envelope:
    # `context` names the account to fetch from, `created` is RFC 3339 text.
    # https://docs.stripe.com/api/v2/core/events/object
    context = event.get("context")
    return Envelope(
        id=require_text(event, "id"),
        type=require_text(event, "type"),
        account=check_text(context, "context") if context and isinstance(context, str) else None,
        livemode=_livemode(event),
        occurred_at=_from_iso(event.get("created")),
        object_id=text_at(event, "related_object", "id"),
    )


def _livemode(event: dict[str, Any]) -> bool:
    # A Connect endpoint gets live and test events at one URL, so a guess would mix them.
    # https://docs.stripe.com/connect/webhooks
    livemode = event.get("livemode")
    if not isinstance(livemode, bool):
        raise BadPayload(f"`livemode`: found {describe(livemode)}; expected true or false")
    return livemode


def _from_seconds(created: object) -> datetime:
    if not isinstance(created, int) or isinstance(created, bool):
        raise BadPayload(f"`created`: found {describe(created)}; expected unix seconds")
    if not 0 <= created <= _LAST_SECOND:
        raise BadPayload(f"`created`: found {created}; expected 0 to {_LAST_SECOND}")
    return from_unix(created)


def _from_iso(created: object) -> datetime:
    problem = f"`created`: found {describe(created)}; expected a time with its offset"
    if not isinstance(created, str):
        raise BadPayload(problem)
    try:
        return parse_iso(created)
    except ValueError:
        raise BadPayload(problem) from None


def sign(body: bytes, *, secret: bytes, id: str, type: str, now: datetime, url: str = "") -> Signed:
    """Sign like Stripe. Id and type are not needed: they are in the body."""
    signed_at = b"%d" % int(now.timestamp())
    signature = hexdigest(secret, b"%b.%b" % (signed_at, body))
    headers = {
        "content-type": "application/json; charset=utf-8",
        "user-agent": "Stripe/1.0 (+https://stripe.com/docs/webhooks)",
        _SIGNATURE: f"t={signed_at.decode()},v1={signature.decode()}",
    }
    return Signed(headers, body, url)


STRIPE: Final = Provider(
    name="stripe",
    verify=verify,
    read=read,
    sign=sign,
    # Retries end after 3 days, the Dashboard resends for 15, `stripe events resend` for 30.
    # https://docs.stripe.com/webhooks#retries
    redelivery=timedelta(days=30),
    retries=True,
    max_body=1024**2,
    tolerance=_TOLERANCE,
    tells_livemode=True,
    columns={
        "id": (("id",),),
        "type": (("type",),),
        "account": (("account",), ("context",)),
        "livemode": (("livemode",),),
        "occurred_at": (("created",),),
        "object_id": (("data", "object", "id"), ("related_object", "id")),
    },
    facts=Facts(
        title="Stripe",
        scheme="HMAC-SHA256 hex over {timestamp}.{body}, header stripe-signature (v1), 5m",
        docs=("https://docs.stripe.com/webhooks",),
        id="json.id",
        type="json.type",
        vector="PyPI stripe 16.1.0 and npm stripe 23.1.0",
        notes=("Snapshot and thin events. A route can take only live or only test events.",),
    ),
)
