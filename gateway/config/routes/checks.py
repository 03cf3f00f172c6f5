"""Checks of the values of a route, which often depend on the route's provider."""

import re
from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, Field, PlainValidator, Strict, ValidationInfo, WithJsonSchema

from gateway.base.model import RepeatPolicy
from gateway.base.problems import Unexpected, describe
from gateway.base.secrets import REFERENCE_PATTERN, SecretRef
from gateway.base.units import (
    LONGEST,
    MILLISECOND,
    Duration,
    Size,
    format_duration,
    holding,
    lasting,
)
from gateway.privacy import redaction as field_paths
from gateway.privacy.redaction import FieldPath, RedactAt
from gateway.providers import PROVIDERS, Provider
from gateway.providers.naming import expected_provider
from gateway.providers.publish import PUBLISH
from gateway.providers.schemes.sections import KINDS

DAY: Final = timedelta(days=1)
MIN_ATTEMPTS: Final = 1
MAX_ATTEMPTS: Final = 20
KEY_RETENTION: Final = 35 * DAY
LONGEST_TIMEOUT: Final = DAY
LONGEST_TOLERANCE: Final = DAY
"""Never longer than the retention of keys: a captured request must become too old before its key is
deleted."""
LONGEST_WAIT: Final = timedelta(minutes=5)
LARGEST_BODY_BYTES: Final = 256 * 1024**2

MOST_FORMER_NAMES: Final = 20
NAME_PATTERN: Final = r"[a-z][a-z0-9_-]{0,62}"
PATH_PATTERN: Final = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+"
MODULE_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
OWN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
OWN_FOLDERS: Final = frozenset({"console", "api", "v1"})
CALLS_STRIPE: Final = frozenset({"stripe", "publish"})


def _text(pattern: str, expected: str) -> tuple[AfterValidator, WithJsonSchema]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise Unexpected(found=describe(text), expected=expected)
        return text

    schema = WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})
    return AfterValidator(check), schema


def _provider(info: ValidationInfo) -> Provider | None:
    """Return the provider of the route that contains a value, or None if it is unknown."""
    return (info.context or {}).get("provider")


def _check_provider(name: str) -> str:
    if name not in PROVIDERS and name not in KINDS:
        raise Unexpected(found=describe(name), expected=expected_provider(name))
    return name


def _check_path(path: str) -> str:
    if path in OWN_PATHS or path.split("/")[1] in OWN_FOLDERS:
        raise Unexpected(
            found=describe(path), expected="a path that the gateway does not use itself"
        )
    return path


def _check_api_key(ref: SecretRef, info: ValidationInfo) -> SecretRef:
    provider = _provider(info)
    if provider is not None and provider.name not in CALLS_STRIPE:
        expected = f"no api_key: it is Stripe's, and provider is {provider.name}"
        raise Unexpected(found=str(ref), expected=expected)
    return ref


def _check_verify_token(ref: SecretRef, info: ValidationInfo) -> SecretRef:
    provider = _provider(info)
    if provider is not None and not provider.wants_token:
        expected = f"no verify_token: {provider.name} shows none in a handshake"
        raise Unexpected(found=str(ref), expected=expected)
    return ref


def _check_tolerance(tolerance: timedelta, info: ValidationInfo) -> timedelta:
    provider = _provider(info)
    if provider is not None and provider.tolerance is None:
        expected = f"no tolerance: {provider.name} signs no time"
        raise Unexpected(found=format_duration(tolerance), expected=expected)
    if not tolerance:
        raise Unexpected(found="0s", expected="more than 0s, which would switch the check off")
    return tolerance


def _check_livemode(livemode: bool, info: ValidationInfo) -> bool:
    provider = _provider(info)
    if provider is not None and not provider.tells_livemode:
        expected = f"no livemode: {provider.name} does not tell live events from test events"
        raise Unexpected(found=describe(livemode), expected=expected)
    return livemode


def _check_repeats(policy: RepeatPolicy, info: ValidationInfo) -> RepeatPolicy:
    provider = _provider(info)
    if provider is not None and provider.repeats is None:
        expected = f"no policy for repeats: {provider.name} signs the event id or the time"
        raise Unexpected(found=describe(policy.value), expected=expected)
    return policy


def shortest_key_retention(provider: Provider) -> timedelta:
    """Return the redelivery window of the provider plus a day.

    A key must be kept for as long as the sender can deliver its event again.
    """
    return provider.redelivery + DAY


def default_key_retention(provider: Provider | None) -> timedelta:
    """Return 35 days, or more if the provider's redelivery window is longer."""
    return max(KEY_RETENTION, shortest_key_retention(provider)) if provider else KEY_RETENTION


def _check_key_retention(key: timedelta, info: ValidationInfo) -> timedelta:
    provider = _provider(info)
    if provider is not None and key < shortest_key_retention(provider):
        window = format_duration(provider.redelivery)
        raise Unexpected(
            found=format_duration(key),
            expected=f"at least {format_duration(shortest_key_retention(provider))}:"
            f" {provider.name} can deliver an event again for {window}, and a day more",
        )
    return key


def _check_dedup_window(window: timedelta, info: ValidationInfo) -> timedelta:
    provider = _provider(info)
    if provider is None:
        return window
    if not provider.keyed_by_digest:
        expected = f"no dedup window: {provider.name} has an id that tells events apart"
        raise Unexpected(found=format_duration(window), expected=expected)
    if window < shortest_key_retention(provider):
        raise Unexpected(
            found=format_duration(window),
            expected=f"at least {format_duration(shortest_key_retention(provider))}:"
            f" {provider.name} can deliver an event again for"
            f" {format_duration(provider.redelivery)}, and a day more",
        )
    if "retention" in info.data:
        key = info.data["retention"].key or default_key_retention(provider)
        if window > key:
            expected = f"at most retention.key ({format_duration(key)})"
            raise Unexpected(found=format_duration(window), expected=expected)
    return window


def _check_payload_retention(payload: timedelta, info: ValidationInfo) -> timedelta:
    if "key" not in info.data:
        return payload
    key = info.data["key"] or default_key_retention(_provider(info))
    if payload > key:
        expected = f"at most retention.key ({format_duration(key)})"
        raise Unexpected(found=format_duration(payload), expected=expected)
    return payload


def _check_cap(cap: timedelta, info: ValidationInfo) -> timedelta:
    base = info.data.get("base", cap)
    if cap < base:
        expected = f"at least base ({format_duration(base)})"
        raise Unexpected(found=format_duration(cap), expected=expected)
    return cap


def _check_modules(modules: list[str]) -> list[str]:
    for module in modules:
        if modules.count(module) > 1:
            raise Unexpected(found=f"{module} twice", expected="each module once")
    return modules


Attempts = Annotated[int, Strict(), Field(ge=MIN_ATTEMPTS, le=MAX_ATTEMPTS)]
RetryCap = Annotated[Duration, AfterValidator(_check_cap)]
HandlerTimeout = Annotated[Duration, lasting(MILLISECOND, LONGEST_TIMEOUT)]
SqlFile = Annotated[str, *_text(r".*\S\.sql", "the path of an .sql file")]
RouteName = Annotated[
    str, *_text(NAME_PATTERN, "a name in lower case: a letter, then letters, digits, - or _")
]
FormerNames = Annotated[list[RouteName], Field(max_length=MOST_FORMER_NAMES)]
ProviderName = Annotated[
    str,
    AfterValidator(_check_provider),
    WithJsonSchema({"type": "string", "enum": sorted({*PROVIDERS, *KINDS} - {PUBLISH.name})}),
]
QueueName = Annotated[
    str,
    AfterValidator(_check_provider),
    WithJsonSchema({"type": "string", "const": PUBLISH.name}),
]
RoutePath = Annotated[
    str,
    *_text(PATH_PATTERN, "a path such as /webhooks/stripe"),
    AfterValidator(_check_path),
]
Reference = Annotated[
    SecretRef,
    PlainValidator(SecretRef.parse),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{REFERENCE_PATTERN})$"}),
]
Tolerance = Annotated[
    Duration,
    lasting(timedelta(0), LONGEST_TOLERANCE),
    AfterValidator(_check_tolerance),
]
Module = Annotated[str, *_text(MODULE_PATTERN, "a module such as handlers.billing")]
Modules = Annotated[list[Module], AfterValidator(_check_modules)]
BodySize = Annotated[Size, holding(1, LARGEST_BODY_BYTES)]
Wait = Annotated[Duration, lasting(MILLISECOND, LONGEST_WAIT)]
Glob = Annotated[str, *_text(r"\S+", "an event type such as invoice.paid or invoice.*")]
Globs = Annotated[list[Glob], Field(min_length=1)]
Livemode = Annotated[bool, Strict(), AfterValidator(_check_livemode)]
RouteRepeats = Annotated[RepeatPolicy, AfterValidator(_check_repeats)]
KeyRetention = Annotated[Duration, AfterValidator(_check_key_retention)]
DedupWindow = Annotated[Duration, AfterValidator(_check_dedup_window)]
PayloadRetention = Annotated[Duration, AfterValidator(_check_payload_retention)]
DeadRetention = Annotated[Duration, lasting(DAY, LONGEST)]
MOST_REDACTED: Final = 100
PII: Final = "pii"


def _field_path(value: object) -> FieldPath:
    if not isinstance(value, str):
        raise Unexpected(found=describe(value), expected=field_paths.EXPECTED)
    if value == PII:
        expected = "the paths of fields: pii is a word of `gateway show --save --redact`"
        raise Unexpected(found=describe(value), expected=expected)
    try:
        return FieldPath.parse(value)
    except ValueError as error:
        raise Unexpected(found=describe(value), expected=str(error)) from None


def _check_identity(path: FieldPath, info: ValidationInfo) -> FieldPath:
    """Refuse redaction of the event id and the type, which are always stored and shown."""
    provider = _provider(info)
    columns = {} if provider is None else provider.columns
    for column in ("id", "type"):
        if path.steps in columns.get(column, ()):
            raise Unexpected(
                found=describe(str(path)),
                expected=f"no field that is the event's {column}: it is always stored and shown",
            )
    return path


RedactedField = Annotated[
    FieldPath,
    PlainValidator(_field_path),
    AfterValidator(_check_identity),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^(?:{field_paths.PATTERN})$",
            "maxLength": field_paths.LONGEST,
            "examples": ["data.object.billing_details"],
        }
    ),
]


def _check_redact_at(at: RedactAt, info: ValidationInfo) -> RedactAt:
    if "redact" in info.data and info.data["redact"] is None:
        raise Unexpected(found=describe(at.value), expected="redact beside it: which fields")
    return at


RedactedAt = Annotated[RedactAt, AfterValidator(_check_redact_at)]
RedactedFields = Annotated[list[RedactedField], Field(min_length=1, max_length=MOST_REDACTED)]
VerifyToken = Annotated[Reference, AfterValidator(_check_verify_token)]
ApiKey = Annotated[Reference, AfterValidator(_check_api_key)]
