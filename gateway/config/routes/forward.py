"""`forward` in a route: its schema in the file, and the resulting configuration."""

import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, Any, Final

import httpx
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, Strict, WithJsonSchema

from gateway.base.model import Backoff, Rate, RetryPolicy
from gateway.base.problems import CREDENTIAL, Unexpected, describe
from gateway.base.secrets import LITERAL, REFERENCE_EXPECTED, REFERENCE_PATTERN, SecretRef
from gateway.base.units import Duration, RateText
from gateway.config.routes.checks import Attempts, Globs, HandlerTimeout, Reference
from gateway.config.routes.fields import KINDS, Section, UrlOrReference

PREFIX: Final = "forward."
"""Prefix of a forward's name in the ledger and in commands, in place of a handler's name."""
FORWARD_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}"
MOST_AT_ONCE: Final = 1000
MOST_HEADERS: Final = 32
MOST_KEYS: Final = 4

HEADER_NAME: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"
HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~\t]{0,4094}[!-~])?")
HEADER_EXPECTED: Final = "text in visible ASCII, or a reference: env:NAME (in capitals), file:/path"
OWN_HEADERS: Final = frozenset(
    {
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
        *("expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
OWN_PREFIXES: Final = ("gateway-", "proxy-", "webhook-")
CREDENTIAL_HEADERS: Final = frozenset(
    {"authorization", "cookie", "x-api-key", "api-key", "x-auth-token", "x-access-token"}
)


def is_forward(handler: str) -> bool:
    """Return whether a handler's name is that of a forward."""
    return handler.startswith(PREFIX)


def _check_name(name: str) -> str:
    if not re.fullmatch(FORWARD_NAME, name):
        expected = "a name of letters, digits and . _ : -, at most 100"
        raise Unexpected(found=describe(name), expected=expected)
    return name


def _check_header_name(name: str) -> str:
    if not re.fullmatch(HEADER_NAME, name):
        raise Unexpected(found=describe(name), expected="the name of a header")
    if name.lower() in OWN_HEADERS or name.lower().startswith(OWN_PREFIXES):
        expected = "a header that the gateway does not set itself"
        raise Unexpected(found=describe(name), expected=expected)
    return name


def check_header_value(text: str) -> str:
    """Check the value of a header. Raises Unexpected.

    The HTTP library would quote an invalid value in its error.
    """
    if not HEADER_VALUE.fullmatch(text):
        raise Unexpected(found="a value that no header can have (not shown)", expected="ASCII")
    return text


def _header_value(value: object) -> str | SecretRef:
    if not isinstance(value, str):
        raise Unexpected(found=LITERAL, expected=HEADER_EXPECTED)
    if value.startswith(KINDS):
        return SecretRef.parse(value)
    if CREDENTIAL.search(value):
        raise Unexpected(found=LITERAL, expected=REFERENCE_EXPECTED)
    return check_header_value(value)


def _check_headers(headers: dict[str, str | SecretRef]) -> dict[str, str | SecretRef]:
    names = [name.lower() for name in headers]
    for name, value in headers.items():
        if names.count(name.lower()) > 1:
            raise Unexpected(found=f"{name.lower()} twice", expected="each header once")
        if name.lower() in CREDENTIAL_HEADERS and not isinstance(value, SecretRef):
            raise Unexpected(found=f"{name} as {LITERAL}", expected=REFERENCE_EXPECTED)
    return headers


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


ForwardName = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": f"^{FORWARD_NAME}$"}),
]
HeaderName = Annotated[
    str,
    AfterValidator(_check_header_name),
    WithJsonSchema({"type": "string", "pattern": f"^{HEADER_NAME}$"}),
]
HeaderValue = Annotated[
    str | SecretRef, PlainValidator(_header_value), WithJsonSchema({"type": "string"})
]
Headers = Annotated[
    dict[HeaderName, HeaderValue],
    Field(max_length=MOST_HEADERS),
    AfterValidator(_check_headers),
]
REFERENCE_SCHEMA: Final = {"type": "string", "pattern": f"^(?:{REFERENCE_PATTERN})$"}
SigningKeys = Annotated[
    list[Reference],
    Field(min_length=1, max_length=MOST_KEYS),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                REFERENCE_SCHEMA,
                {"type": "array", "items": REFERENCE_SCHEMA, "minItems": 1, "maxItems": MOST_KEYS},
            ]
        }
    ),
]


class ForwardRetrySection(Section):
    """The retry policy of failed pushes. Omitted keys default to `defaults.retry`."""

    attempts: Attempts | None = Field(
        default=None, description="How often it is tried before it is dead."
    )
    backoff: Backoff | None = Field(
        default=None, description="Whether the wait grows with each attempt or stays."
    )
    base: Duration | None = Field(default=None, description="The wait after the first attempt.")
    cap: Duration | None = Field(default=None, description="The longest wait; at least base.")

    def over(self, defaults: RetryPolicy) -> RetryPolicy:
        """Return the defaults, overridden by the keys of this section."""
        said: dict[str, Any] = {key: value for key, value in self if value is not None}
        return replace(defaults, **said)


class ForwardSection(Section):
    """An HTTP service to which a route's events are pushed."""

    name: ForwardName = Field(
        description="Its name: the deliveries are those of the handler forward.<name>."
    )
    types: Globs = Field(
        default_factory=lambda: ["*"],
        description="Event types that it takes, as globs. Default all.",
    )
    url: UrlOrReference = Field(
        description="Where to: http:// or https://, or where the URL is kept: env:NAME, file:/path."
    )
    timeout: HandlerTimeout | None = Field(
        default=None,
        description="How long one attempt may take, the answer included. Default defaults.timeout.",
    )
    headers: Headers = Field(
        default_factory=dict,
        description="More headers of the request, as text or as env:NAME or file:/path.",
    )
    sign: SigningKeys | None = Field(
        default=None,
        description="Where the keys are with which requests are signed (Standard Webhooks):"
        " env:NAME or file:/path, or a list of them while one is changed for another.",
    )
    retry: ForwardRetrySection = Field(
        default_factory=ForwardRetrySection,
        description="When a failed push is tried again. Default defaults.retry.",
    )
    concurrency: Annotated[int, Strict(), Field(ge=1, le=MOST_AT_ONCE)] | None = Field(
        default=None, description="How many run at once, over all workers."
    )
    rate: RateText | None = Field(
        default=None, description="How many start in a period, over all workers: 100/m."
    )


def _check_names(forwards: list[ForwardSection]) -> list[ForwardSection]:
    names = [forward.name for forward in forwards]
    for name in names:
        if names.count(name) > 1:
            raise Unexpected(found=f"{name} twice", expected="each name once in a route")
    return forwards


Forwards = Annotated[list[ForwardSection], AfterValidator(_check_names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """An HTTP service to which a route's events are pushed."""

    name: str
    types: tuple[str, ...]
    url: str | SecretRef = field(repr=False)
    timeout: timedelta
    retry: RetryPolicy
    headers: tuple[tuple[str, str | SecretRef], ...] = field(default=(), repr=False)
    sign: tuple[SecretRef, ...] = ()
    concurrency: int | None = None
    rate: Rate | None = None

    @property
    def handler(self) -> str:
        """The handler name of its deliveries."""
        return f"{PREFIX}{self.name}"

    @property
    def place(self) -> str:
        """The destination for display: a reference, or scheme and host. The rest may be secret."""
        if isinstance(self.url, SecretRef):
            return str(self.url)
        url = httpx.URL(self.url)
        return f"{url.scheme}://{url.netloc.decode()}"


def make_forward(section: ForwardSection, timeout: timedelta, retry: RetryPolicy) -> Forward:
    """Return the forward of a section, with defaults for omitted keys."""
    return Forward(
        name=section.name,
        types=tuple(section.types),
        url=section.url,
        timeout=section.timeout or timeout,
        headers=tuple(section.headers.items()),
        sign=tuple(section.sign or ()),
        retry=section.retry.over(retry),
        concurrency=section.concurrency,
        rate=section.rate,
    )
