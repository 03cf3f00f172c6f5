"""The findings of the doctor, and the installation that it examines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from typing_extensions import TypedDict

from gateway.base.errors import ConfigInvalid, Problem
from gateway.config.registry import Registry, load_registry
from gateway.config.routes import Config, Route, load_config
from gateway.config.settings import Settings, discover, load_settings

USUAL_TOLERANCE: Final = timedelta(minutes=5)
LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SETTINGS: Final = "settings"
ROUTES: Final = "routes"
HANDLERS: Final = "handlers"


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


class Check(NamedTuple):
    """A finding that is reported if it applies to a row of facts.

    The texts are formatted with the fields of the same row.
    """

    applies: Callable[[Mapping[str, Any]], object]
    level: Literal["ok", "warning", "problem"]
    found: str
    advice: str | None = None


def run_checks(about: str, checks: Iterable[Check], row: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings of all checks that apply."""
    for check in checks:
        if check.applies(row):
            advice = None if check.advice is None else check.advice.format_map(row)
            found = check.found.format_map(row)
            yield Finding(level=check.level, about=about, found=found, advice=advice)


def read_installation(environ: Mapping[str, str]) -> tuple[Installation, list[Finding]]:
    """Read as much of the installation as possible, with a finding for each problem."""
    settings, findings = _read_settings(environ)
    config, registry = None, None
    try:
        config = load_config(settings.config)
        registry = load_registry(config)
    except ConfigInvalid as error:
        findings += [_wrong(HANDLERS if config else ROUTES, p) for p in error.problems]
    return (
        Installation(settings=settings, environ=environ, config=config, registry=registry),
        findings,
    )


def _read_settings(environ: Mapping[str, str]) -> tuple[Settings, list[Finding]]:
    """Read the settings without the invalid variables, so that all others can still be checked."""
    try:
        return discover(load_settings(environ)), []
    except ConfigInvalid as error:
        wrong = {told.key for told in error.problems}
        findings = [_wrong(SETTINGS, told) for told in error.problems]
    rest = {name: value for name, value in environ.items() if name not in wrong}
    return discover(load_settings(rest)), findings


def _wrong(about: str, told: Problem) -> Finding:
    where = told.file if told.line is None else f"{told.file}:{told.line}"
    return problem(about, f"{where}: {told.key}: found {told.found}", f"expected {told.expected}")
