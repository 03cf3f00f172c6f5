"""Validation errors of external text, as "found" and "expected", without showing credentials."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]

SHOWN_CHARS: Final = 60
SHAPES: Final = frozenset({"nothing", "a mapping", "an empty mapping", "a list", "an empty list"})
"""The results of `describe` for values whose content it does not show."""
HIDDEN: Final = "a value (not shown)"
CREDENTIAL: Final = re.compile(r"://[^/\s]*@|whsec_|[rs]k_(live|test)_|\bgh[oprsu]_|github_pat_")
"""A password in a URL, or the prefixes of Stripe's and GitHub's secrets, under any key."""

PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./:*-]*")
"""Text that needs no quotes as an item of a YAML list."""


class Unexpected(ValueError):
    """A value that is not as expected. `found` is safe to print."""

    def __init__(self, *, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(f"found {found}; expected {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One value that a model rejected, and its location in the document."""

    location: Location
    found: str
    expected: str
    unknown: bool = False
    """Whether the key itself is rejected, not its value."""
    quotes: bool = False
    """Whether `found` quotes the value by a generic rule, regardless of its content."""
    unlisted: str | None = None
    """The text that was found instead of a list. It may be a secret."""


def describe(value: object) -> str:
    """Describe a value in a few words on one line, without credentials."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case Mapping():
            return "a mapping" if value else "an empty mapping"
        case list():
            return "a list" if value else "an empty list"
    text = repr(value) if isinstance(value, str) else str(value)
    if CREDENTIAL.search(text):
        return HIDDEN
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def as_list(text: str) -> str:
    """Return a YAML list with this text as its only item."""
    return f"[{text}]" if PLAIN.fullmatch(text) else json.dumps([text], ensure_ascii=False)


def one_of(names: Iterable[str], *, like: str = "") -> str:
    """Return the allowed names, with a suggestion that is close to the given name."""
    allowed = sorted(names)
    close = get_close_matches(like, allowed, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"one of {', '.join(allowed)}{hint}"


def refusals(error: ValidationError) -> Iterator[Refusal]:
    """Yield a refusal per error of a pydantic exception, whose own text quotes the input."""
    for line in error.errors(include_url=False):
        location = tuple(part for part in line["loc"] if part != "[key]")
        cause = line.get("ctx", {}).get("error")
        if isinstance(cause, Unexpected):
            yield Refusal(location=location, found=cause.found, expected=cause.expected)
        elif line["type"] == "extra_forbidden":
            yield Refusal(location=location, found="an unknown key", expected="", unknown=True)
        else:
            is_unlisted = line["type"] == "list_type" and isinstance(line["input"], str)
            yield Refusal(
                location=location,
                found=_found(line),
                expected=_expected(line),
                quotes=True,
                unlisted=line["input"] if is_unlisted else None,
            )


def _found(line: ErrorDetails) -> str:
    return "nothing" if line["type"] == "missing" else describe(line["input"])


EXPECTED: Final[Mapping[str, str]] = {
    "missing": "this key, which is required",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "at least {min_length} character(s)",
    "string_too_long": "at most {max_length} character(s)",
    "path_type": "a path",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "literal_error": "{expected}",
    "enum": "{expected}",
}


def _expected(line: ErrorDetails) -> str:
    """Return our own wording if there is one: pydantic's are whole sentences, and not templates."""
    context: dict[str, Any] = line.get("ctx", {})
    words = EXPECTED.get(line["type"])
    return line["msg"] if words is None else words.format_map(context)
