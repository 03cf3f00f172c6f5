"""What is examined: settings, routes and handlers, as far as they can be had."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.registry import Registry
from gateway.routes import Config, Route
from gateway.settings import Settings

USUAL_TOLERANCE: Final = timedelta(minutes=5)


def utc_now() -> datetime:
    """The clock of this host."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One place where the gateway runs, or is to run."""

    settings: Settings
    environ: Mapping[str, str] = field(repr=False)
    config: Config | None = None
    """None where the routes cannot be read."""
    registry: Registry | None = None
    """None where the handlers cannot be loaded."""
    now: Callable[[], datetime] = utc_now

    @property
    def routes(self) -> tuple[Route, ...]:
        return () if self.config is None else self.config.routes

    @property
    def tolerance(self) -> timedelta:
        """By how much a clock may be wrong at the most, before signed requests are refused."""
        given = [route.tolerance for route in self.routes if route.tolerance is not None]
        return min(given, default=USUAL_TOLERANCE)

    @property
    def base_url(self) -> str:
        """Where senders find it, as far as is known."""
        settings = self.settings
        return settings.public_url or f"http://{settings.host}:{settings.port}"
