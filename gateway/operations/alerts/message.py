"""Send one message to one destination. Neither its URL nor its response body is ever shown."""

import asyncio
import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from gateway.base.errors import PushFailed
from gateway.base.problems import CREDENTIAL
from gateway.base.secrets import Secret
from gateway.config.routes import AlertDestinations
from gateway.http import outbound as client
from gateway.http.outbound import OutboundClient
from gateway.ledger.alerts import MOST_COUNTED, Alert, AlertKind, Destination, Details, HandlerPause
from gateway.operations.alerts.rules import AlertNews
from gateway.providers.standard_webhooks import headers, parse_key

LONGEST_ERROR: Final = 200
LIKE_A_CREDENTIAL: Final = "(not shown: it may hold a credential)"
TEST: Final = "alert.test"
TEST_TEXT: Final = "This is a test: alerts of the webhook gateway arrive here."
BREAK_MENTION: Final = "\u200b"
"""A zero-width space. It stops @channel from notifying all members, which
works without markup too.
"""

STANDING: Final = {AlertKind.DEAD: "dead letter", AlertKind.EFFECTS: "unknown effect"}
"""Conditions that last until an operator acts."""
OVER: Final = {
    AlertKind.DEAD: "no dead letters are left",
    AlertKind.BACKLOG: "nothing is overdue",
    AlertKind.EFFECTS: "no effects of unknown outcome are left",
}

Message = dict[str, Any]


def message_id(alert: Alert) -> str:
    """Return an id that is the same for every attempt at one notification, and unique otherwise."""
    parts = (*alert.key, alert.raised_at.astimezone(UTC).isoformat(), str(alert.round))
    return "alert_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def make_message(alert: Alert, news: AlertNews, details: Details | None, at: datetime) -> Message:
    """Build the message for the webhook. `details` is None when the alert is over."""
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


def _paused(pause: HandlerPause) -> Message:
    return {
        "actor": one_line(pause.actor),
        "since": pause.since,
        "reason": one_line(pause.reason) if pause.reason else None,
    }


def make_test(at: datetime) -> Message:
    """Build a message that only tests the delivery of alerts."""
    return {"type": TEST, "timestamp": at, "data": {"text": TEST_TEXT}}


def slack_message(message: Mapping[str, Any]) -> Message:
    """Convert a message to the format of Slack and compatible services."""
    data = message["data"]
    lines = [_escape(data["text"])]
    if data.get("error"):
        lines.append(f"> {_code(data['error'])}")
    if data.get("command"):
        lines.append(_code(data["command"]))
    # Disable previews, so that no link in an error is fetched.
    return {"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False}


def one_line(text: str) -> str:
    """Shorten untrusted text to one harmless line."""
    if CREDENTIAL.search(text):
        return LIKE_A_CREDENTIAL
    line = " ".join(text.split())
    line = "".join(char if char.isprintable() else "?" for char in line[: LONGEST_ERROR + 1])
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


def _headline(alert: Alert, news: AlertNews, details: Details | None) -> str:
    where = f"{one_line(alert.handler)} on route {one_line(alert.route)}"
    if details is None:
        return f"Recovered: {OVER[alert.kind]} of {where}. It began {_time(alert.raised_at)}."
    still = "Still: " if news is AlertNews.REPEATED else ""
    if alert.kind in STANDING:
        more = f", {details.untold:,} of them new" if news is AlertNews.REPEATED else ""
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
    """Return the command that an operator should run next."""
    if details is None:
        return None
    if alert.kind is AlertKind.BACKLOG:
        if details.pause is None:
            return "gateway status"
        named = [alert.route, details.pause.handler] if details.pause.handler else [alert.route]
        return shlex.join(["gateway", "resume", *named])
    since = details.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    given = ["--route", alert.route, "--handler", alert.handler, "--since", since]
    listing = "effects" if alert.kind is AlertKind.EFFECTS else "dead"
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
    """Format as code. Between backquotes only another backquote is markup."""
    return f"`{_escape(text.replace('`', chr(39)))}`"


WEBHOOK: Final[Destination] = "webhook"
SLACK: Final[Destination] = "slack"
ANSWER_S: Final = 10.0
"""Total timeout, from the first packet to the end of the response."""
AGENT: Final = "webhook-gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostResult:
    """Result of one attempt to send."""

    ok: bool
    text: str
    retry_after: timedelta | None = None


def names(destinations: AlertDestinations) -> list[Destination]:
    """Return the configured destinations."""
    return list(_names(destinations))


def _names(destinations: AlertDestinations) -> Iterator[Destination]:
    if destinations.webhook is not None:
        yield WEBHOOK
    if destinations.slack is not None:
        yield SLACK


async def post(
    http: OutboundClient,
    destinations: AlertDestinations,
    destination: Destination,
    *,
    id: str,
    message: Mapping[str, Any],
    now: datetime | None = None,
) -> PostResult:
    """Send the message and return the result, within ANSWER_S."""
    url, body, sent = _request(destinations, destination, id, message, now or datetime.now(UTC))
    try:
        async with asyncio.timeout(ANSWER_S):
            return _judge(await http.post(url, sent, body))
    except TimeoutError:
        return PostResult(ok=False, text=f"no answer within {ANSWER_S:.0f} s")
    except PushFailed as failed:
        return PostResult(ok=False, text=str(failed))


def _request(
    destinations: AlertDestinations,
    destination: Destination,
    id: str,
    message: Mapping[str, Any],
    at: datetime,
) -> tuple[str, bytes, dict[str, str]]:
    common = {"content-type": "application/json", "user-agent": AGENT}
    if destination == SLACK:
        body = orjson.dumps(slack_message(message), option=orjson.OPT_UTC_Z)
        return _text(destinations.slack), body, common
    body = orjson.dumps(message, option=orjson.OPT_UTC_Z)
    keys = [] if destinations.key is None else [parse_key(_text(destinations.key))]
    return _text(destinations.webhook), body, common | headers(id, int(at.timestamp()), body, keys)


def _text(secret: Secret | None) -> str:
    return "" if secret is None else secret.reveal().decode()


def _judge(answer: client.OutboundResponse) -> PostResult:
    """Judge a response by its status only: the body is the receiver's,
    and may quote the message.
    """
    if answer.is_acknowledged:
        return PostResult(ok=True, text=f"status {answer.status}")
    seconds = answer.headers.get("retry-after", "")
    is_wait = seconds.isascii() and seconds.isdigit() and len(seconds) < 6
    retry_after = timedelta(seconds=int(seconds)) if is_wait else None
    return PostResult(ok=False, text=f"status {answer.status}", retry_after=retry_after)
