"""What a request to publish a job says: its key, type, delay and payload."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import orjson

from gateway.errors import BadJob, BadPayload
from gateway.providers.payload import describe, parse_object
from gateway.providers.provider import Headers
from gateway.providers.publish import (
    DEEPEST,
    EXACT,
    LONGEST_NAME,
    NAME_EXPECTED,
    Inexact,
    is_name,
    job_digest,
)

KEY_HEADER: Final = "idempotency-key"
LONGEST_DELAY: Final = timedelta(days=30)
FIELDS: Final = ("payload", "idempotencyKey", "delaySeconds", "type")
_MOST_SECONDS: Final = int(LONGEST_DELAY.total_seconds())
_PLAIN: Final = rf"[!#-~](?:[ -~]{{0,{LONGEST_NAME - 2}}}[!-~])?"
# https://www.rfc-editor.org/rfc/rfc8941.html#name-strings
_QUOTED: Final = rf'"((?:[ !#-\[\]-~]|\\["\\]){{1,{LONGEST_NAME}}})"'
KEY_PATTERN: Final = f"{_PLAIN}|{_QUOTED}"
"""Plain, or in quotes as the draft of the standard has it, which then are not part of the key.
https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job as somebody wants it."""

    id: str
    """The key that was given; without one, a fresh id."""
    type: str
    delay: timedelta
    body: bytes
    """The payload as JSON."""
    digest: bytes


def read_job(queue: str, headers: Headers, body: bytes) -> JobRequest:
    """Raises BadPayload, or BadJob where it is not the payload that is wrong."""
    request = parse_object(body)
    for name in request:
        if name not in FIELDS:
            raise BadJob(f"found {describe(name)}; expected only {', '.join(FIELDS)}")
    if "payload" not in request:
        raise BadPayload("`payload`: found nothing; expected any JSON")
    type = _name(request, "type") or queue
    return JobRequest(
        id=_key(request, headers) or f"job_{uuid4().hex}",
        type=type,
        delay=_delay(request),
        body=_written(request["payload"]),
        digest=job_digest(type, _read_exactly(body)["payload"]),
    )


def read_payload(document: bytes) -> Any:
    """The payload in a file, refused where it would be refused as part of a request."""
    try:
        payload = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise BadPayload(f"not JSON: {error}") from None
    _written(payload)
    _read_exactly(document)
    return payload


def _written(payload: Any) -> bytes:
    try:
        return orjson.dumps(payload)
    except TypeError:  # all that is wrong with what orjson itself has read
        raise BadPayload(f"`payload`: found more than {DEEPEST} levels; expected fewer") from None


def _read_exactly(document: bytes) -> Any:
    try:
        return EXACT.decode(document.decode())
    except Inexact as error:
        raise BadPayload(str(error)) from None
    except RecursionError:  # in a value that another one of the same key has replaced
        raise BadPayload(f"found more than {DEEPEST} levels; expected fewer") from None


def _key(request: Mapping[str, Any], headers: Headers) -> str | None:
    in_body = _name(request, "idempotencyKey")
    value = headers.get(KEY_HEADER)
    if value is None:
        return in_body
    in_header = _header_key(value)
    if in_body not in (None, in_header):
        raise BadJob(
            f"`idempotencyKey`: found {describe(in_body)}, and {describe(in_header)} in the"
            " Idempotency-Key header; expected one key"
        )
    return in_header


def _header_key(value: str) -> str:
    match = re.fullmatch(KEY_PATTERN, value)
    if match is None:
        raise BadJob(
            f"Idempotency-Key header: found {describe(value)}; expected one of at most"
            f" {LONGEST_NAME} visible ASCII characters (`idempotencyKey` takes any)"
        )
    return value if match[1] is None else re.sub(r"\\(.)", r"\1", match[1])


def _name(request: Mapping[str, Any], field: str) -> str | None:
    value = request.get(field)
    if value is None or is_name(value):
        return value
    found = f"{len(value)} characters" if _is_long(value) else describe(value)
    raise BadJob(f"`{field}`: found {found}; expected {NAME_EXPECTED}")


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > LONGEST_NAME


def _delay(request: Mapping[str, Any]) -> timedelta:
    seconds = request.get("delaySeconds")
    if seconds is None:
        return timedelta(0)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= _MOST_SECONDS:
        raise BadJob(
            f"`delaySeconds`: found {describe(seconds)}; expected a number from 0 to"
            f" {_MOST_SECONDS} (30 days)"
        )
    return timedelta(seconds=seconds)
