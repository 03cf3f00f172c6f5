"""When to notify: pure decisions from the state of an alert and the current finding."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gateway.ledger.alerts import Alert, AlertFinding

QUIET: Final = timedelta(minutes=10)
"""An alert that is raised again within this time after its last notification waits until it has
passed. A flapping condition causes at most two notifications within it.
"""

REMINDER: Final = timedelta(days=1)
"""Minimum interval of reminders of a paused handler: a pause is not urgent,
but must not be forgotten.
"""


class AlertNews(StrEnum):
    """The type of a notification."""

    RAISED = "raised"
    REPEATED = "repeated"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDecision:
    """The new state of an alert, and the notification to send, if any."""

    alert: Alert
    news: AlertNews | None = None


def judge(
    alert: Alert | None,
    finding: AlertFinding | None,
    *,
    repeat: timedelta,
    at: datetime,
    tells: bool,
) -> AlertDecision | None:
    """Return the new state of an alert, or None if it is unchanged.

    `tells` says whether there is a destination to notify.
    """
    if finding is None:
        return None if alert is None or not alert.stands else _clear(alert, at, tells)
    before = alert
    if alert is None or not alert.stands:
        if not finding.is_enough:
            return None
        alert = _raise(alert, finding, at)
    if alert.paused != finding.paused:
        # The operator who paused or resumed it knows. The next notification is due as if
        # this change had been one.
        told_at = at if alert.round else alert.told_at
        alert = replace(alert, paused=finding.paused, told_at=told_at)
    if tells and finding.is_enough and _is_time(alert, repeat, at):
        news = AlertNews.REPEATED if alert.round else AlertNews.RAISED
        return AlertDecision(alert=replace(alert, round=alert.round + 1, told_at=at), news=news)
    return None if alert == before else AlertDecision(alert=alert)


def _raise(last: Alert | None, finding: AlertFinding, at: datetime) -> Alert:
    return Alert(
        kind=finding.kind,
        route=finding.route,
        handler=finding.handler,
        raised_at=at,
        told_at=last.told_at if last else None,
        told_through=last.told_through if last else None,
        paused=finding.paused,
    )


def _clear(alert: Alert, at: datetime, tells: bool) -> AlertDecision:
    """Clear the alert. Send a notification only if one was sent when it was raised."""
    if not alert.round or not tells:
        return AlertDecision(alert=replace(alert, cleared_at=at))
    cleared = replace(alert, cleared_at=at, round=alert.round + 1, told_at=at)
    return AlertDecision(alert=cleared, news=AlertNews.RECOVERED)


def _is_time(alert: Alert, repeat: timedelta, at: datetime) -> bool:
    if alert.told_at is None:
        return True
    wait = min(repeat, QUIET)
    if alert.round:
        wait = max(repeat, REMINDER) if alert.paused else repeat
    # Take the absolute difference: a clock that was set back must not silence the alert.
    return abs(at - alert.told_at) >= wait
