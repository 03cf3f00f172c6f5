"""`reconcile` of a route: how to ask the provider for the events that it sent."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import httpx
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from gateway.base.model import Rate
from gateway.base.problems import Unexpected, describe
from gateway.base.secrets import SecretRef
from gateway.base.units import Duration, RateText, lasting
from gateway.config.routes.checks import Reference
from gateway.config.routes.fields import Section, check_url
from gateway.providers import Provider

STRIPE_API: Final = "https://api.stripe.com"
GITHUB_API: Final = "https://api.github.com"
API_URLS: Final = {"stripe": STRIPE_API, "github": GITHUB_API}
"""The providers that support reconcile, with their API URLs."""

HOOK_PATTERN: Final = (
    r"app|repos/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+/hooks/[0-9]{1,19}"
    r"|orgs/[A-Za-z0-9_.-]+/hooks/[0-9]{1,19}"
)
HOOK_EXPECTED: Final = "repos/OWNER/REPO/hooks/ID, orgs/ORG/hooks/ID or app"
APP: Final = "app"
ACCOUNT_PATTERN: Final = r"acct_[A-Za-z0-9]{1,60}"
APP_ID_PATTERN: Final = r"[A-Za-z0-9._-]{1,60}"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SHORTEST_EVERY: Final = timedelta(minutes=1)
LONGEST_EVERY: Final = timedelta(days=1)
LONGEST_WAIT: Final = timedelta(minutes=30)
RATE: Final = Rate(count=1, period=timedelta(seconds=1))
"""GitHub recommends waiting a second between requests that modify data.
https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """How to ask a route's provider for the events that it sent."""

    every: timedelta | None = None
    """The interval of reconcile runs. None: only by command."""
    api_url: str
    accounts: tuple[str, ...] = ()
    hook: str | None = None
    token: SecretRef | None = None
    app_id: str | None = None
    private_key: SecretRef | None = None
    rate: Rate = RATE
    wait: timedelta = timedelta(minutes=1)


def _name(info: ValidationInfo) -> str | None:
    provider: Provider | None = (info.context or {}).get("provider")
    return None if provider is None else provider.name


def _only(name: str) -> AfterValidator:
    """Allow a key only for one provider."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if value is not None and _name(info) not in (name, None):
            expected = f"no {info.field_name}: it is for provider {name}"
            raise Unexpected(found=_shown(value), expected=expected)
        return value

    return AfterValidator(check)


def _shown(value: object) -> str:
    return "a value" if isinstance(value, SecretRef) else describe(value)


def _hook(hook: str | None, info: ValidationInfo) -> str | None:
    if hook is None and _name(info) == "github":
        raise Unexpected(found="nothing", expected=f"where the webhook is: {HOOK_EXPECTED}")
    return hook


def _with(kind: str, expected: str) -> AfterValidator:
    """Require a key for a hook of this kind, and refuse it for a hook of the other kind."""

    def check(value: Any, info: ValidationInfo) -> Any:
        hook = info.data.get("hook")
        if hook is None or _name(info) != "github":
            return value
        is_meant = (hook == APP) == (kind == APP)
        if is_meant and value is None:
            raise Unexpected(found="nothing", expected=expected)
        if not is_meant and value is not None:
            other = "an App shows a token that is made from its private_key"
            why = other if hook == APP else "it is for hook: app"
            raise Unexpected(found=_shown(value), expected=f"no {info.field_name}: {why}")
        return value

    return AfterValidator(check)


def _matching(pattern: str, expected: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not re.fullmatch(pattern, text):
            raise Unexpected(found=describe(value), expected=expected)
        return text

    return check


def _api_url(value: object) -> str:
    if not isinstance(value, str):
        raise Unexpected(found=describe(value), expected="a URL such as https://github.example.com")
    url = httpx.URL(check_url(value))
    if url.scheme != "https" and url.host not in LOOPBACK:
        raise Unexpected(
            found="a URL without TLS", expected="https://: a key goes there (http only to loopback)"
        )
    if url.query:
        raise Unexpected(found="a URL with a query", expected="a URL without one")
    return value.rstrip("/")


ApiUrl = Annotated[
    str,
    PlainValidator(_api_url),
    WithJsonSchema({"type": "string", "pattern": r"^https?://[^\s/?#@][^\s?#@]*$"}),
]
Hook = Annotated[
    str,
    PlainValidator(_matching(HOOK_PATTERN, HOOK_EXPECTED)),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{HOOK_PATTERN})$"}),
]
AppId = Annotated[
    str,
    PlainValidator(_matching(APP_ID_PATTERN, "the App's id, or its client id")),
    WithJsonSchema({"type": ["integer", "string"], "pattern": f"^{APP_ID_PATTERN}$"}),
]
Account = Annotated[
    str,
    PlainValidator(_matching(ACCOUNT_PATTERN, "a connected account such as acct_1Nv0FGQ9RKHgCVdK")),
    WithJsonSchema({"type": "string", "pattern": f"^{ACCOUNT_PATTERN}$"}),
]


class ReconcileSection(Section):
    """How to find events that the provider sent and the gateway never received."""

    every: Annotated[Duration, lasting(SHORTEST_EVERY, LONGEST_EVERY)] | None = Field(
        default=None,
        description="How often workers ask, 1m to 1d. Default: only `gateway reconcile` does.",
    )
    api_url: ApiUrl | None = Field(
        default=None,
        description="The provider's API, where it is not the public one: a GitHub Enterprise"
        " Server's https://HOST/api/v3.",
    )
    accounts: Annotated[list[Account], Field(min_length=1), _only("stripe")] | None = Field(
        default=None,
        description="Stripe Connect: the connected accounts whose events the endpoint gets.",
    )
    hook: Annotated[Hook | None, _only("github"), AfterValidator(_hook)] = Field(
        default=None,
        validate_default=True,
        description="GitHub: where the webhook is, repos/OWNER/REPO/hooks/ID, orgs/ORG/hooks/ID"
        " or app.",
    )
    token: Annotated[
        Reference | None,
        _only("github"),
        _with("token", "a token that may read and write webhooks: env:NAME or file:/path"),
    ] = Field(
        default=None,
        validate_default=True,
        description="GitHub: where the token is that may read and write webhooks.",
    )
    app_id: Annotated[
        AppId | None, _only("github"), _with(APP, "the App's id, or its client id")
    ] = Field(
        default=None,
        validate_default=True,
        description="GitHub, hook: app: the App's id, or its client id.",
    )
    private_key: Annotated[
        Reference | None, _only("github"), _with(APP, "the App's key: file:/path or env:NAME")
    ] = Field(
        default=None,
        validate_default=True,
        description="GitHub, hook: app: where the App's private key (PEM) is.",
    )
    rate: Annotated[RateText, _only("github")] = Field(
        default=RATE, description="GitHub: how many redeliveries are asked for at the most."
    )
    wait: Annotated[Duration, lasting(timedelta(0), LONGEST_WAIT), _only("github")] = Field(
        default=timedelta(minutes=1),
        description="GitHub: how long a run waits for what it asked for.",
    )


def check_reconcile(
    section: ReconcileSection | None, info: ValidationInfo
) -> ReconcileSection | None:
    """Check that the route's provider supports reconcile, and that it has an API key if needed."""
    name = _name(info)
    if section is None or name is None:
        return section
    if name not in API_URLS:
        expected = f"no reconcile: {name} cannot be asked what it sent"
        raise Unexpected(found="a mapping", expected=expected)
    if name == "stripe" and info.data.get("api_key", "") is None:
        raise Unexpected(
            found="no api_key in the route",
            expected="one beside it: a key that may read events (api_key: env:NAME)",
        )
    return section


def read_reconcile(section: ReconcileSection | None, provider: str) -> Reconcile | None:
    """Return the section with the defaults of the provider, or None."""
    if section is None:
        return None
    return Reconcile(
        every=section.every,
        api_url=section.api_url or API_URLS[provider],
        accounts=tuple(section.accounts or ()),
        hook=section.hook,
        token=section.token,
        app_id=section.app_id,
        private_key=section.private_key,
        rate=section.rate,
        wait=section.wait,
    )
