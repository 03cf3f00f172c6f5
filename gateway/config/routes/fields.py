"""Types of single values in routes.yaml: URLs, secrets, limits."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Final

import httpx
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.base.model import Rate
from gateway.base.networks import MOST_NETWORKS, Network, NetworkText
from gateway.base.problems import Unexpected
from gateway.base.secrets import LITERAL, REFERENCE_PATTERN, SecretRef
from gateway.base.times import Time
from gateway.base.units import RateText, format_duration, format_rate
from gateway.base.yaml_source import Section
from gateway.config.routes.checks import Reference
from gateway.http.outbound import refusal_of_host
from gateway.providers import Provider
from gateway.providers.schemes.places import ValuePlace
from gateway.providers.schemes.template import Template


class FileSchema(GenerateJsonSchema):
    """Writes defaults as in the file: durations as text, and unset keys omitted instead of null."""

    def encode_default(self, dft: Any) -> Any:
        match dft:
            case timedelta():
                return format_duration(dft)
            case Rate():
                return format_rate(dft.count, dft.period)
            case Template() | ValuePlace():
                return str(dft)
            case [Template()]:
                return dft[0].said
        return super().encode_default(dft)

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        return {key: value for key, value in described.items() if (key, value) != ("default", None)}

    def field_title_should_be_set(self, schema: Mapping[str, Any]) -> bool:
        return False


__all__ = ["Section"]


URL_EXPECTED: Final = (
    "a URL such as https://orders.internal/hooks, or a reference: env:NAME (in capitals) or"
    " file:/path"
)
LONGEST_URL: Final = 4096
PORTS: Final = range(1, 2**16)
KINDS: Final = ("env:", "file:")


def check_url(text: str) -> str:
    """Check a URL. Raises Unexpected without the URL, which may contain a secret."""
    if len(text) > LONGEST_URL or not text.isprintable() or " " in text:
        raise Unexpected(found="text that is no URL (not shown)", expected=URL_EXPECTED)
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = None
    if url is None or url.scheme not in ("http", "https"):
        raise Unexpected(found="text that is no URL (not shown)", expected=URL_EXPECTED)
    for is_wrong, what in (
        (not url.host, "without a host"),
        (url.port is not None and url.port not in PORTS, "with a port that there is not"),
        (bool(url.userinfo), "with a user name or a password"),
        (bool(url.fragment), "with a fragment (#...)"),
    ):
        if is_wrong:
            raise Unexpected(found=f"a URL {what} (not shown)", expected=URL_EXPECTED)
    refused = refusal_of_host(url.host)
    if refused is not None:
        expected = "an address to which something may be sent"
        raise Unexpected(found=f"a URL whose host is {refused} (not shown)", expected=expected)
    return text


def read_url(value: object) -> str | SecretRef:
    """Read a URL or a reference to one."""
    if not isinstance(value, str):
        raise Unexpected(found=LITERAL, expected=URL_EXPECTED)
    return SecretRef.parse(value) if value.startswith(KINDS) else check_url(value)


UrlOrReference = Annotated[
    str | SecretRef,
    PlainValidator(read_url),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^(?:{REFERENCE_PATTERN}|https?://[^\\s/?#@]+(?:[/?][^\\s#]*)?)$",
        }
    ),
]


class SecretSection(Section):
    """A secret with an expiry."""

    secret: Reference = Field(description="Where it is: env:NAME or file:/path.")
    expires_at: Time | None = Field(
        default=None,
        description="From when on it verifies nothing any more; in UTC unless it names a zone.",
    )


def _read(raw: Any, _: object) -> SecretRef | SecretSection:
    """Read a secret. Any other value may be the secret itself, so errors do not show it."""
    return SecretSection.model_validate(raw) if isinstance(raw, dict) else SecretRef.parse(raw)


RouteSecret = Annotated[Reference | SecretSection, WrapValidator(_read)]


def make_ref(item: SecretRef | SecretSection) -> SecretRef:
    """Return a reference for either form."""
    if isinstance(item, SecretRef):
        return item
    return replace(item.secret, expires_at=item.expires_at)


def _with_a_url(info: ValidationInfo, found: str) -> None:
    """Refuse a limit on a queue without tokens, because it has no URL to limit."""
    if info.data.get("tokens", ()) is None:
        expected = f"tokens beside {info.field_name}: without them the queue has no URL"
        raise Unexpected(found=found, expected=expected)


def _check_allow(networks: list[Network] | None, info: ValidationInfo) -> list[Network] | None:
    _with_a_url(info, "a list")
    return networks


def _check_limit(limit: Rate | None, info: ValidationInfo) -> Rate | None:
    provider: Provider | None = (info.context or {}).get("provider")
    if limit is None:
        return None
    found = format_rate(limit.count, limit.period)
    if provider is not None and not provider.retries:
        # Spooling the excess events instead would only move them to the local disk.
        expected = f"no limit: {provider.name} does not send again what is answered 429"
        raise Unexpected(found=found, expected=expected)
    _with_a_url(info, found)
    return limit


Allow = Annotated[
    Annotated[list[NetworkText], Field(min_length=1, max_length=MOST_NETWORKS)] | None,
    AfterValidator(_check_allow),
    Field(
        description="Addresses and networks from which requests may come; others are answered 403."
        " Default anywhere."
    ),
]
Limit = Annotated[
    RateText | None,
    AfterValidator(_check_limit),
    Field(
        description="How many verified events one serve process takes in a period: 500/s. More are"
        " answered 429, so only where the sender comes again. Default as many as come."
    ),
]
