"""The time span of a run: how far back a provider can be queried safely, and until when."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.base.errors import CommandFailed
from gateway.base.units import format_duration
from gateway.config.routes import Route
from gateway.operations.reconcile.github import kept_by
from gateway.operations.reconcile.stripe import KEPT

MARGIN: Final = timedelta(hours=1)
"""Safety margin, because event ids are forgotten while a run is in progress."""

ON_ITS_WAY: Final = timedelta(minutes=1)
"""Newer events are not listed: they may still be on their way, and are not gaps."""

OVERLAP: Final = timedelta(minutes=15)
"""Overlap with the previous run, because listings may lag behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far back a route can be reconciled."""

    kept_since: datetime
    """From when on the provider still has its events."""
    known_since: datetime
    """From when on the ledger still has all event ids that it received."""


def kept(route: Route) -> timedelta:
    """Return how long the route's provider keeps its events."""
    if route.provider.name == "stripe" or route.reconcile is None:
        return KEPT
    return kept_by(route.reconcile.api_url)


def limits(route: Route, now: datetime) -> Limits:
    return Limits(kept_since=now - kept(route), known_since=now - route.retention.key + MARGIN)


def cut(route: Route, since: datetime, now: datetime) -> tuple[datetime, str | None]:
    """Return the earliest possible start, and the reason if it is later than `since`.

    The id of an event older than `retention.key` may have been received and forgotten, so the event
    would be processed again.
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
