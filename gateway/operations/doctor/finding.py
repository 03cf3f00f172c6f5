"""The result of one check, with advice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from typing_extensions import TypedDict

from gateway.config.registry import Registry
from gateway.config.routes import Config, Route
from gateway.config.settings import Settings

USUAL_TOLERANCE: Final = timedelta(minutes=5)


def utc_now() -> datetime:
    """Return the time by the clock of this host."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An installation of the gateway, seen from one host."""

    settings: Settings
    environ: Mapping[str, str] = field(repr=False)
    config: Config | None = None
    """None if the routes cannot be read."""
    registry: Registry | None = None
    """None if the handlers cannot be loaded."""
    now: Callable[[], datetime] = utc_now

    @property
    def routes(self) -> tuple[Route, ...]:
        return () if self.config is None else self.config.routes

    @property
    def tolerance(self) -> timedelta:
        """The largest clock error before signed requests are rejected."""
        given = [route.tolerance for route in self.routes if route.tolerance is not None]
        return min(given, default=USUAL_TOLERANCE)

    @property
    def base_url(self) -> str:
        """The URL for senders: the public URL if it is set, or else host and port."""
        settings = self.settings
        return settings.public_url or f"http://{settings.host}:{settings.port}"


class Finding(TypedDict):
    """A finding of one or two lines. It never contains a secret."""

    level: Literal["ok", "warning", "problem"]
    about: str
    found: str
    advice: str | None
    """None if there is nothing to do."""


def ok(about: str, found: str) -> Finding:
    """Return a finding that everything is in order."""
    return Finding(level="ok", about=about, found=found, advice=None)


def warning(about: str, found: str, advice: str) -> Finding:
    """Return a finding about something that works but should be improved."""
    return Finding(level="warning", about=about, found=found, advice=advice)


def problem(about: str, found: str, advice: str) -> Finding:
    """Return a finding about something that does not work, or endangers stored data."""
    return Finding(level="problem", about=about, found=found, advice=advice)
