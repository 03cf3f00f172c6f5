"""Reports of `up` for its callbacks."""

from dataclasses import dataclass

from gateway.config.routes import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Everything is running."""

    url: str
    engines: tuple[str, ...]
    made_up: tuple[str, ...]
    """Secret references that could not be resolved and got a development secret."""
    config: Config
    reloads: bool
    console_url: str | None
    """None if the console is off: no token is set and the host is not a loopback address."""
    console_tokens: tuple[str, ...]
    """The variables with the tokens that the console accepts. Empty if the console is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Result of a reload after files were saved."""

    files: tuple[str, ...]
    took_s: float
    problems: tuple[str, ...] = ()
    """Problems of the new configuration. If there are any, the previous one still runs."""
