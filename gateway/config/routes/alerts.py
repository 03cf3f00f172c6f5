"""`alerts` in routes.yaml: the conditions of alerts, and their destinations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Final, Self

from pydantic import Field, Strict, model_validator

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.problems import Unexpected
from gateway.base.secrets import Secret, SecretRef, SecretUnusable, resolve
from gateway.base.units import Duration, lasting
from gateway.config.routes.checks import Reference
from gateway.config.routes.fields import Section, UrlOrReference, check_url
from gateway.providers.standard_webhooks import parse_key

MOST_DEAD: Final = 10_000
SHORTEST_REPEAT: Final = timedelta(minutes=1)
LONGEST_REPEAT: Final = timedelta(days=30)
LONGEST_BACKLOG: Final = timedelta(days=30)
DEAD: Final = 1
EFFECTS: Final = 1
BACKLOG: Final = timedelta(minutes=10)
REPEAT: Final = timedelta(hours=1)
URL_IN_IT: Final = "the URL in it, and nothing else"
KEY_IN_IT: Final = "the signing key in it, and nothing else"


class AlertWebhookSection(Section):
    """The URL to which alerts are posted as JSON."""

    url: UrlOrReference = Field(
        description="Where to: http:// or https://, or where the URL is kept: env:NAME, file:/path."
    )
    sign: Reference | None = Field(
        default=None,
        description="Where the key is with which alerts are signed (Standard Webhooks).",
    )


class AlertsSection(Section):
    """The conditions of alerts, and their destinations."""

    dead: Annotated[int, Strict(), Field(ge=0, le=MOST_DEAD)] = Field(
        default=DEAD, description="How many dead letters of a handler raise an alert; 0: none do."
    )
    backlog: Annotated[Duration, lasting(timedelta(0), LONGEST_BACKLOG)] = Field(
        default=BACKLOG,
        description="How long a delivery may be due before that raises an alert; 0s: for ever.",
    )
    effects: Annotated[int, Strict(), Field(ge=0, le=MOST_DEAD)] = Field(
        default=EFFECTS,
        description="How many effects of unknown outcome of a handler raise an alert; 0: none do.",
    )
    repeat: Annotated[Duration, lasting(SHORTEST_REPEAT, LONGEST_REPEAT)] = Field(
        default=REPEAT,
        description="After how long an alert that still stands is told again, at the earliest.",
    )
    webhook: AlertWebhookSection | None = Field(
        default=None, description="Where alerts are posted as JSON."
    )
    slack: UrlOrReference | None = Field(
        default=None,
        description="Where alerts are posted as Slack's messages: a URL, env:NAME or file:/path.",
    )

    @model_validator(mode="after")
    def _reach_somebody(self) -> Self:
        if self.webhook is None and self.slack is None:
            raise Unexpected(found="neither webhook nor slack", expected="one of them, or both")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """The conditions of alerts, and their destinations.

    By default there is no destination, and only commands show the alerts.
    """

    dead: int = DEAD
    """Number of dead letters of a handler. 0: no alert."""
    backlog: timedelta = BACKLOG
    """How long a delivery may be due. Zero: no alert."""
    effects: int = EFFECTS
    """Number of effects of a handler with an unknown outcome. 0: no alert."""
    repeat: timedelta = REPEAT
    webhook: str | SecretRef | None = field(default=None, repr=False)
    sign: SecretRef | None = None
    slack: str | SecretRef | None = field(default=None, repr=False)


def make_alerts(section: AlertsSection | None) -> Alerts:
    """Return the configuration of the section, or the defaults without one."""
    if section is None:
        return Alerts()
    return Alerts(
        dead=section.dead,
        backlog=section.backlog,
        effects=section.effects,
        repeat=section.repeat,
        webhook=section.webhook.url if section.webhook else None,
        sign=section.webhook.sign if section.webhook else None,
        slack=section.slack,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDestinations:
    """The destinations of alerts. Their URLs are secrets, since they may allow anyone to post."""

    webhook: Secret | None = None
    key: Secret | None = None
    slack: Secret | None = None


def find_destinations(
    alerts: Alerts, environ: Mapping[str, str], problem: Callable[..., Problem]
) -> AlertDestinations:
    """Resolve the references. Raises ConfigInvalid with every one that cannot be resolved."""
    problems: list[Problem] = []

    def find(read: Callable[[], str], *at: str) -> Secret | None:
        try:
            return Secret(read().encode())
        except (SecretUnusable, Unexpected) as error:
            problems.append(problem("alerts", *at, found=error.found, expected=error.expected))
            return None

    webhook, sign, slack = alerts.webhook, alerts.sign, alerts.slack
    found = AlertDestinations(
        webhook=find(lambda: _url(webhook, environ), "webhook", "url") if webhook else None,
        key=find(lambda: _key(sign, environ), "webhook", "sign") if sign else None,
        slack=find(lambda: _url(slack, environ), "slack") if slack else None,
    )
    if problems:
        raise ConfigInvalid(problems)
    return found


def _url(url: str | SecretRef, environ: Mapping[str, str]) -> str:
    if isinstance(url, str):
        return url
    text = resolve(url, environ, {}, expected=URL_IN_IT).decode()
    try:
        return check_url(text)
    except Unexpected as error:
        raise Unexpected(found=f"{url}, with {error.found}", expected=error.expected) from None


def _key(ref: SecretRef, environ: Mapping[str, str]) -> str:
    text = resolve(ref, environ, {}, expected=KEY_IN_IT).decode()
    try:
        parse_key(text)
    except Unexpected as error:
        raise Unexpected(found=f"{ref}, with {error.found}", expected=error.expected) from None
    return text
