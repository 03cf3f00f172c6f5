"""A queue: its jobs come from handlers (`ctx.publish`), or over HTTP with a bearer token."""

import hashlib
import json
import secrets
from collections import Counter
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeGuard

import orjson

from gateway.errors import BadSignature
from gateway.providers.provider import SECRET_BYTES, Provider

LONGEST_NAME: Final = 255
NAME_EXPECTED: Final = f"a text of at most {LONGEST_NAME} printable characters"
DEEPEST: Final = 254
"""Levels of a payload: what orjson writes, so that handlers and HTTP can publish the same."""
LEAST: Final = -(2**63)
MOST: Final = 2**64 - 1
"""Integers of a payload: what orjson writes and reads, so that handlers get what was published."""
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
    """JSON that not every reader would read alike."""


def is_name(text: object) -> TypeGuard[str]:
    """Whether this can be the key or the type of a job."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def job_digest(type: str, payload: Any) -> bytes:
    """By what a job is told from another one under the same key: what it means, not how it is
    written. The payload must come from `EXACT`."""
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
    """1.0 and 1e0 mean 1, as they do to whoever compares numbers."""
    number = float(text)
    return int(number) if number.is_integer() and LEAST <= number <= MOST else number


EXACT: Final = json.JSONDecoder(
    object_pairs_hook=_without_twins, parse_int=_integer, parse_float=_number
)
"""For telling jobs apart: no number is rounded, and no key is there twice."""
