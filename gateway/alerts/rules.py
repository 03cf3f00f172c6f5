"""When people are told: pure decisions over how an alert stands and what was found."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gateway.ledger.alerts import Alert, Finding

QUIET: Final = timedelta(minutes=10)
"""One that comes back sooner after it was last told of waits for so long: whatever goes up and down
is told of at most twice in this time."""

REMINDER: Final = timedelta(days=1)
"""A paused handler is no alarm, but must not be forgotten."""


class News(StrEnum):
    """What people are told."""

    RAISED = "raised"
    REPEATED = "repeated"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the alert stands from now on, and what is told of it."""

    alert: Alert
    news: News | None = None


def judge(
    alert: Alert | None, finding: Finding | None, *, repeat: timedelta, at: datetime, tells: bool
) -> Decision | None:
    """What becomes of an alert; None where it stays as it is. `tells`: there is whom to tell."""
    if finding is None:
        return None if alert is None or not alert.stands else _clear(alert, at, tells)
    before = alert
    if alert is None or not alert.stands:
        if not finding.is_enough:
            return None
        alert = _raise(alert, finding, at)
    if alert.paused != finding.paused:
        # Whoever paused or resumed it knows: the next telling is due as if this had been one.
        told_at = at if alert.round else alert.told_at
        alert = replace(alert, paused=finding.paused, told_at=told_at)
    if tells and finding.is_enough and _is_time(alert, repeat, at):
        news = News.REPEATED if alert.round else News.RAISED
        return Decision(alert=replace(alert, round=alert.round + 1, told_at=at), news=news)
    return None if alert == before else Decision(alert=alert)


def _raise(last: Alert | None, finding: Finding, at: datetime) -> Alert:
    return Alert(
        kind=finding.kind,
        route=finding.route,
        handler=finding.handler,
        raised_at=at,
        told_at=last.told_at if last else None,
        told_through=last.told_through if last else None,
        paused=finding.paused,
    )


def _clear(alert: Alert, at: datetime, tells: bool) -> Decision:
    """Over: told to those who were told that it was there."""
    if not alert.round or not tells:
        return Decision(alert=replace(alert, cleared_at=at))
    cleared = replace(alert, cleared_at=at, round=alert.round + 1, told_at=at)
    return Decision(alert=cleared, news=News.RECOVERED)


def _is_time(alert: Alert, repeat: timedelta, at: datetime) -> bool:
    if alert.told_at is None:
        return True
    wait = min(repeat, QUIET)
    if alert.round:
        wait = max(repeat, REMINDER) if alert.paused else repeat
    # Either way: a clock that was set back must not silence it until it has caught up.
    return abs(at - alert.told_at) >= wait
