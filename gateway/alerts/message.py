"""What an alert says: JSON for programs, one line for people, and Slack's markup."""

import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway.alerts.rules import News
from gateway.ledger.alerts import MOST_COUNTED, Alert, Details, Kind, Pause
from gateway.notation.problems import CREDENTIAL

LONGEST_ERROR: Final = 200
LIKE_A_CREDENTIAL: Final = "(not shown: it may hold a credential)"
TEST: Final = "alert.test"
TEST_TEXT: Final = "This is a test: alerts of the webhook gateway arrive here."
BREAK_MENTION: Final = "\u200b"
"""Without width: keeps @channel from calling everybody, also where no markup is needed for that."""

STANDING: Final = {Kind.DEAD: "dead letter", Kind.EFFECTS: "unknown effect"}
"""What stands until a person does something about it."""
OVER: Final = {
    Kind.DEAD: "no dead letters are left",
    Kind.BACKLOG: "nothing is overdue",
    Kind.EFFECTS: "no effects of unknown outcome are left",
}

Message = dict[str, Any]


def message_id(alert: Alert) -> str:
    """The same for every attempt at one telling, and for no other."""
    parts = (*alert.key, alert.raised_at.astimezone(UTC).isoformat(), str(alert.round))
    return "alert_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def make_message(alert: Alert, news: News, details: Details | None, at: datetime) -> Message:
    """What the webhook gets. `details`: None once it is over."""
    data: Message = {
        "kind": alert.kind.value,
        "route": alert.route,
        "handler": alert.handler,
        "raised_at": alert.raised_at,
        "round": alert.round,
        "since": details.since if details else alert.raised_at,
        "count": details.count if details else 0,
        "count_capped": details is not None and details.count >= MOST_COUNTED,
        "new": details.untold if details else 0,
        "error": one_line(details.error) if details and details.error else None,
        "paused": _paused(details.pause) if details and details.pause else None,
        "orphaned": details.orphaned if details else False,
        "command": _command(alert, details),
        "text": _headline(alert, news, details),
    }
    return {"type": f"alert.{news.value}", "timestamp": at, "data": data}


def _paused(pause: Pause) -> Message:
    return {
        "actor": one_line(pause.actor),
        "since": pause.since,
        "reason": one_line(pause.reason) if pause.reason else None,
    }


def make_test(at: datetime) -> Message:
    """A message that says nothing but that messages arrive."""
    return {"type": TEST, "timestamp": at, "data": {"text": TEST_TEXT}}


def slack_message(message: Mapping[str, Any]) -> Message:
    """The same as Slack and those who imitate it take it."""
    data = message["data"]
    lines = [_escape(data["text"])]
    if data.get("error"):
        lines.append(f"> {_code(data['error'])}")
    if data.get("command"):
        lines.append(_code(data["command"]))
    # A link in an error must not be followed for a preview.
    return {"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False}


def one_line(text: str) -> str:
    """Text from strangers, short and harmless."""
    if CREDENTIAL.search(text):
        return LIKE_A_CREDENTIAL
    line = " ".join(text.split())
    line = "".join(char if char.isprintable() else "?" for char in line[: LONGEST_ERROR + 1])
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


def _headline(alert: Alert, news: News, details: Details | None) -> str:
    where = f"{one_line(alert.handler)} on route {one_line(alert.route)}"
    if details is None:
        return f"Recovered: {OVER[alert.kind]} of {where}. It began {_time(alert.raised_at)}."
    still = "Still: " if news is News.REPEATED else ""
    if alert.kind in STANDING:
        more = f", {details.untold:,} of them new" if news is News.REPEATED else ""
        counted = _count(details.count, STANDING[alert.kind])
        return f"{still}{counted} of {where} since {_time(details.since)}{more}."
    waiting = f"{_count(details.count, 'delivery')} due, the oldest since {_time(details.since)}"
    if details.pause is not None:
        why = f": {one_line(details.pause.reason)}" if details.pause.reason else ""
        by = f"by {one_line(details.pause.actor)} {_time(details.pause.since)}{why}"
        return f"Paused: {where}, {by} ({waiting})."
    nobody = " No worker has this handler." if details.orphaned else ""
    return f"{still}Backlog of {where}: {waiting}.{nobody}"


def _command(alert: Alert, details: Details | None) -> str | None:
    """What to type next."""
    if details is None:
        return None
    if alert.kind is Kind.BACKLOG:
        if details.pause is None:
            return "gateway status"
        named = [alert.route, details.pause.handler] if details.pause.handler else [alert.route]
        return shlex.join(["gateway", "resume", *named])
    since = details.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    given = ["--route", alert.route, "--handler", alert.handler, "--since", since]
    listing = "effects" if alert.kind is Kind.EFFECTS else "dead"
    return shlex.join(["gateway", listing, *given])


def _count(count: int, noun: str) -> str:
    plural = noun if count == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{'at least ' if count >= MOST_COUNTED else ''}{count:,} {plural}"


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _escape(text: str) -> str:
    # https://docs.slack.dev/messaging/formatting-message-text#escaping
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return text.replace("@", f"@{BREAK_MENTION}")


def _code(text: str) -> str:
    """Between backquotes nothing is markup, but another backquote."""
    return f"`{_escape(text.replace('`', chr(39)))}`"
