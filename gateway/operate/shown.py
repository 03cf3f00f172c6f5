"""An event as people may see it: without what its route redacts.

For the commands, the Admin API and the console: whoever shows an event to somebody asks here.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.ledger.rejected import NOWHERE
from gateway.redaction import REDACTED, Redaction
from gateway.redaction.hiding import Hide
from gateway.redaction.redaction import WHOLE
from gateway.routes import Config

Row = dict[str, Any]

UNREADABLE: Final = "routes.yaml cannot be read, so that what it redacts is not known"
UNKNOWN: Final = "the route is not in routes.yaml, so that what it redacts is not known"
UNSEARCHABLE: Final = "fields of it are redacted, and cannot be found in a body that is no JSON"


def find_redaction(config: Config, route: str) -> Redaction | str | None:
    """What to take out of a route's events; a text where that cannot be said, and why."""
    if route == NOWHERE and not any(known.redaction for known in config.routes):
        return None
    if route not in {known.name for known in config.routes}:
        return UNKNOWN
    return config.redaction(route)


def redact_event(event: Mapping[str, Any], redaction: Redaction | str | None) -> Row:
    """The event with what was taken out of it, or why all of it was, under `redacted`.

    Where its payload is gone, texts that may quote it cannot be searched, and are taken out whole.
    """
    if redaction is None:
        return {**event, "redacted": None}
    if isinstance(redaction, str):
        return _whole(event, redaction)
    if event["body"] is None:
        fields = _fields(redaction)
        return {**event, "redacted": fields, "deliveries": _hidden(event, lambda _: REDACTED)}
    headers = event["headers"] or {}
    shown = redaction.apply(headers, event["body"])
    if shown.is_whole:
        return _whole(event, UNSEARCHABLE)
    hide = redaction.hiding(headers, event["body"])
    deliveries = _hidden(event, hide)
    return {
        **event,
        "body": shown.body,
        "redacted": _fields(redaction),
        "deliveries": [_without(delivery, hide) for delivery in deliveries],
    }


def _whole(event: Mapping[str, Any], why: str) -> Row:
    body = None if event["body"] is None else WHOLE
    deliveries = _hidden(event, lambda _: REDACTED)
    return {**event, "body": body, "redacted": why, "deliveries": deliveries}


def _fields(redaction: Redaction) -> str:
    return ", ".join(map(str, redaction.paths))


def _hidden(event: Mapping[str, Any], hide: Hide) -> list[Row]:
    """What calls of handlers have answered may quote the payload, too."""
    return [
        {
            **delivery,
            "effects": [
                {**e, "result": None if e["result"] is None else hide(e["result"])}
                for e in delivery["effects"]
            ],
        }
        for delivery in event["deliveries"]
    ]


def _without(delivery: Row, hide: Hide) -> Row:
    """Errors of before the field was redacted; those of after it have been searched already."""
    return {
        **delivery,
        "error": None if delivery["error"] is None else hide(delivery["error"]),
        "attempt_log": [
            {**a, "error": None if a["error"] is None else hide(a["error"])}
            for a in delivery["attempt_log"]
        ],
    }
