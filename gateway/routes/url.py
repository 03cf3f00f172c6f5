"""URLs to which the gateway sends: what they may be, without ever showing one."""

from typing import Annotated, Final

import httpx
from pydantic import PlainValidator, WithJsonSchema

from gateway.notation.problems import Unexpected
from gateway.outbound.addresses import refusal_of_host
from gateway.secrets import LITERAL, REFERENCE_PATTERN, SecretRef

URL_EXPECTED: Final = (
    "a URL such as https://orders.internal/hooks, or a reference: env:NAME (in capitals) or"
    " file:/path"
)
LONGEST_URL: Final = 4096
PORTS: Final = range(1, 2**16)
KINDS: Final = ("env:", "file:")


def check_url(text: str) -> str:
    """Raises Unexpected. A URL can hold a secret, so that no message shows it."""
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
    """A URL, or where it is kept."""
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
