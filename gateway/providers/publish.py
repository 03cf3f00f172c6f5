"""A queue: its jobs come from handlers (`ctx.publish`), or over HTTP with a bearer token."""

import hashlib
import json
from collections import Counter
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeGuard

from gateway.errors import BadSignature
from gateway.providers.provider import Provider

LONGEST_NAME: Final = 255
DEEPEST: Final = 254
"""Levels of a payload: what orjson writes, so that handlers and HTTP can publish the same."""


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
)


class KeyTwice(ValueError):
    """An object has a key twice, and nobody knows which value a reader would take."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__("a key twice")


def is_name(text: object) -> TypeGuard[str]:
    """Whether this can be the key or the type of a job."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def job_digest(type: str, payload: Any) -> bytes:
    """By what a job is told from another one under the same key: what it means, not how it is
    written. The payload must come from `EXACT`, so that no number was rounded."""
    canonical = json.dumps([type, payload], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).digest()


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise KeyTwice(max(counts, key=counts.__getitem__))
    return found


def _number(text: str) -> float | int:
    """1.0 and 1e0 mean 1, as they do to whoever compares numbers."""
    number = float(text)
    return int(number) if number.is_integer() else number


EXACT: Final = json.JSONDecoder(object_pairs_hook=_without_twins, parse_float=_number)
"""Reads integers of any size as they are."""
