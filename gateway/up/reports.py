"""What `up` tells people."""

from dataclasses import dataclass

from gateway.routes import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Once everything runs."""

    url: str
    engines: tuple[str, ...]
    made_up: tuple[str, ...]
    """Secret references that lead nowhere and got a development secret."""
    config: Config
    reloads: bool
    console_url: str | None
    """None if there is no console: it has no token, and the host is not a loopback address."""
    console_tokens: tuple[str, ...]
    """The variables whose tokens the console asks for; none if it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """After files were saved."""

    files: tuple[str, ...]
    took_s: float
    problems: tuple[str, ...] = ()
    """Where there are any, what ran before still runs."""
