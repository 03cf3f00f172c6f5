"""Responses to requests in a rehearsal, from the event's payload or from a sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from gateway.base.errors import CommandFailed
from gateway.testing.stripe_objects import READS, STRIPE, StripeObjects, told_object

FIELDS: Final = frozenset({"method", "url", "status", "json"})
FORM: Final = 'a JSON list of {"method": "POST", "url": "https://...*", "status": 200, "json": {}}'
RANGES: Final = "expected a method such as POST, or *, and a status from 200 to 599"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """A response that the user has given for matching requests."""

    url: str
    """A glob, in which `*` matches any text."""
    method: str = "*"
    status: int = 200
    json: Any = None

    def fits(self, request: httpx.Request) -> bool:
        """Return whether this response applies to the request."""
        return self.method.upper() in (request.method, "*") and fits(request.url, self.url)


def fits(url: httpx.URL, glob: str) -> bool:
    """Compare a URL with a glob, as `outgoing.answer` does."""
    return str(url) == glob or fnmatchcase(str(url), glob)


def load_answers(file: Path) -> list[GivenAnswer]:
    """Read the responses from a file.

    Raises CommandFailed if the file cannot be read or has another format.
    """
    try:
        found = orjson.loads(file.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{file}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise CommandFailed(f"{file}: found no JSON: {error}; expected {FORM}") from error
    if not isinstance(found, list):
        raise CommandFailed(f"{file}: found {type(found).__name__}; expected {FORM}")
    return [_read_answer(item, f"{file}: answer {n}") for n, item in enumerate(found, 1)]


def _read_answer(item: Any, where: str) -> GivenAnswer:
    if not isinstance(item, dict) or not isinstance(item.get("url"), str):
        raise CommandFailed(f"{where}: found no url; expected {FORM}")
    if unknown := item.keys() - FIELDS:
        raise CommandFailed(f"{where}: found {', '.join(sorted(unknown))}; expected {FORM}")
    method, status = item.get("method", "*"), item.get("status", 200)
    if not isinstance(method, str) or type(status) is not int or not 200 <= status <= 599:
        raise CommandFailed(f"{where}: found method {method!r} and status {status!r}; {RANGES}")
    return GivenAnswer(url=item["url"], method=method, status=status, json=item.get("json", {}))


class Answers:
    """Responses to requests. The same request gets the same response in every run."""

    def __init__(self, now: datetime, given: Sequence[GivenAnswer] = ()) -> None:
        self._given = given
        self._stripe = StripeObjects(now)

    def given(self, request: httpx.Request) -> GivenAnswer | None:
        """Return the user's response to the request, or None.

        If several match, the last one wins.
        """
        return next((answer for answer in reversed(self._given) if answer.fits(request)), None)

    def answer(self, request: httpx.Request, payload: Any) -> Any:
        """Return the body of a response.

        `payload` is that of the event, or a list of several, the newest first.
        """
        told = told_object(request, payload)
        if told is not None:
            return told
        if request.url.host == STRIPE:
            return self._stripe.answer(request)
        return {} if request.method in READS else {"id": "rehearsal"}
