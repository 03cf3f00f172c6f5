"""From when on a provider can be asked without harm, and until when it makes sense."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.errors import CommandFailed
from gateway.notation.quantities import format_duration
from gateway.reconcile.github import kept_by
from gateway.reconcile.stripe import KEPT
from gateway.routes import Route

MARGIN: Final = timedelta(hours=1)
"""A run takes its time, and keys are forgotten meanwhile."""

ON_ITS_WAY: Final = timedelta(minutes=1)
"""What happened this moment ago may still be on its way, and is no gap."""

OVERLAP: Final = timedelta(minutes=15)
"""By how much a run looks again at what the last one saw: listings may be behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far back a route can be looked at."""

    kept_since: datetime
    """What the provider still has."""
    known_since: datetime
    """What the ledger would still know, had it seen it."""


def kept(route: Route) -> timedelta:
    """For how long the route's provider can be asked."""
    if route.provider.name == "stripe" or route.reconcile is None:
        return KEPT
    return kept_by(route.reconcile.api_url)


def limits(route: Route, now: datetime) -> Limits:
    """At this moment."""
    return Limits(kept_since=now - kept(route), known_since=now - route.retention.key + MARGIN)


def cut(route: Route, since: datetime, now: datetime) -> tuple[datetime, str | None]:
    """The earliest moment to look at, and why it is not the one that was asked for.

    What is older than `retention.key` may have been seen and forgotten, and would come again.
    """
    if since > now:
        raise CommandFailed("--since: found a time in the future; expected one in the past")
    bounds = limits(route, now)
    floor = max(bounds.kept_since, bounds.known_since)
    if since >= floor:
        return since, None
    if bounds.known_since > bounds.kept_since:
        key = format_duration(route.retention.key)
        return floor, f"cut to {_ago(now - floor)}: older keys are forgotten (retention.key {key})"
    return floor, f"cut to {_ago(now - floor)}: {route.provider.name} keeps no more"


def _ago(age: timedelta) -> str:
    return format_duration(timedelta(seconds=int(age.total_seconds())))
