"""Queues: how a published job is read and checked."""

import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeGuard
from uuid import uuid4

import orjson

from gateway.base.errors import BadJob, BadPayload, BadSignature
from gateway.providers.payload import describe, parse_object
from gateway.providers.provider import SECRET_BYTES, Headers, Provider

LONGEST_NAME: Final = 255
NAME_EXPECTED: Final = f"a text of at most {LONGEST_NAME} printable characters"
DEEPEST: Final = 254
"""Maximum nesting of a payload: the limit of orjson's writer. Handlers and HTTP share it."""
LEAST: Final = -(2**63)
MOST: Final = 2**64 - 1
"""Integer range of a payload: orjson can write and read it, so handlers get the published value."""
LONGEST_INTEGER: Final = len(str(LEAST))


def _refuse(*_: object, **__: object) -> NoReturn:
    raise BadSignature("a queue takes no webhooks")


PUBLISH: Final = Provider(
    name="publish",
    verify=_refuse,
    read=_refuse,
    sign=_refuse,
    redelivery=timedelta(0),
    retries=True,
    max_body=1024 * 1024,
    tolerance=None,
    is_queue=True,
    make_secret=lambda: f"gwq_{secrets.token_hex(SECRET_BYTES)}",
)


class Inexact(ValueError):
    """JSON that different parsers could read differently."""


def is_name(text: object) -> TypeGuard[str]:
    """Whether the value is a valid key or type of a job."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def job_digest(type: str, payload: Any) -> bytes:
    """Return a digest that distinguishes jobs with the same key by their meaning, not by how their
    JSON is written. The payload must come from `EXACT`.
    """
    canonical = orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(type.encode() + b"\0" + canonical).digest()


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise Inexact(f"found the key {key[:60]!a} twice in one object; expected each once")
    return found


def _integer(text: str) -> int:
    if len(text) <= LONGEST_INTEGER and LEAST <= (number := int(text)) <= MOST:
        return number
    raise Inexact(
        f"found an integer of {len(text)} characters; expected one of 64 bits, or its text"
    )


def _number(text: str) -> float | int:
    """Read 1.0 and 1e0 as 1, because they are equal as numbers."""
    number = float(text)
    return int(number) if number.is_integer() and LEAST <= number <= MOST else number


EXACT: Final = json.JSONDecoder(
    object_pairs_hook=_without_twins, parse_int=_integer, parse_float=_number
)
"""Decoder for `job_digest`: it rounds no number, and rejects a key that occurs twice."""


KEY_HEADER: Final = "idempotency-key"
LONGEST_DELAY: Final = timedelta(days=30)
FIELDS: Final = ("payload", "idempotencyKey", "delaySeconds", "type")
_MOST_SECONDS: Final = int(LONGEST_DELAY.total_seconds())
_PLAIN: Final = rf"[!#-~](?:[ -~]{{0,{LONGEST_NAME - 2}}}[!-~])?"
# https://www.rfc-editor.org/rfc/rfc8941.html#name-strings
_QUOTED: Final = rf'"((?:[ !#-\[\]-~]|\\["\\]){{1,{LONGEST_NAME}}})"'
KEY_PATTERN: Final = f"{_PLAIN}|{_QUOTED}"
"""Plain, or quoted as in the draft of the standard. The quotes are not part of the key.
https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A requested job, validated."""

    id: str
    """The given key, or a new random id."""
    type: str
    delay: timedelta
    body: bytes
    """The payload as JSON."""
    digest: bytes


def read_job(queue: str, headers: Headers, body: bytes) -> JobRequest:
    """Parse a request. Raises BadPayload if the payload is invalid, or
    BadJob if another field is.
    """
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
    """Read a payload from a file, with the same limits as in a request."""
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
    except TypeError:  # the only error for a value that orjson itself has parsed
        raise BadPayload(f"`payload`: found more than {DEEPEST} levels; expected fewer") from None


def _read_exactly(document: bytes) -> Any:
    try:
        return EXACT.decode(document.decode())
    except Inexact as error:
        raise BadPayload(str(error)) from None
    except RecursionError:  # nested in a value that a later value of the same key replaced
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
