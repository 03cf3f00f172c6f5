"""Fake values for personal data: of the same shape, and the same fake for the same value."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

Scalar = str | int | float | bool | None

EMAIL: Final = r"[\w.+%-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"

# The first pattern that matches gives the fake; `n` distinguishes the values of one shape. The
# addresses and domains are reserved for documentation: https://www.rfc-editor.org/rfc/rfc2606,
# rfc5737, rfc3849
_SHAPES: Final[tuple[tuple[re.Pattern[str], Callable[[str, int], str]], ...]] = (
    (re.compile(EMAIL), lambda value, n: f"person{n}@example.com"),
    (re.compile(r"https?://\S+"), lambda value, n: f"https://example.com/redacted/{n}"),
    (re.compile(r"\d{1,3}(?:\.\d{1,3}){3}"), lambda value, n: f"192.0.2.{n}"),
    (
        re.compile(r"(?=.*:.*:)[0-9A-Fa-f:]+(?:\.\d+){0,3}"),
        lambda value, n: f"2001:db8::{n:x}",
    ),
    (re.compile(r"\d{4}-\d\d-\d\d.*"), lambda value, n: f"2000-01-{n % 28 + 1:02}{value[10:]}"),
    (re.compile(r"\+?[\d ().-]*\d[\d ().-]*"), lambda value, n: _into_digits(value, n)),
    (
        re.compile(r"[a-z]+(?:_[A-Za-z0-9]+)*_[A-Za-z0-9]{8,}"),
        lambda value, n: _after_prefix(value, n),
    ),
    (re.compile(r"(?=.*\d)[A-Za-z0-9]{8,}"), lambda value, n: f"{n:0{len(value)}}"),
    (re.compile(r"[A-Z]{2,3}"), lambda value, n: "X" * len(value)),
)
_WORDS: Final[Mapping[str, str]] = {
    "address": "{n} Example Street",
    "city": "Example City {n}",
    "line1": "{n} Example Street",
    "line2": "Unit {n}",
    "login": "person-{n}",
    "name": "Person {n}",
}
_OTHERWISE: Final = "redacted {n}"


class Fakes:
    """The fake values of one document."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, Scalar], Scalar] = {}
        self._counts: Counter[str] = Counter()

    def replace(self, key: str, value: Scalar) -> Scalar:
        """Return the fake for a value. None, booleans and empty strings are returned unchanged."""
        if value is None or isinstance(value, bool) or value == "":
            return value
        known = (type(value), value)
        if known not in self._known:
            self._known[known] = self._make(key, value)
        return self._known[known]

    @property
    def texts(self) -> dict[str, str]:
        """The replaced strings, each with its fake."""
        return {
            value: fake
            for (_, value), fake in self._known.items()
            if isinstance(value, str) and isinstance(fake, str)
        }

    def __len__(self) -> int:
        return len(self._known)

    def _make(self, key: str, value: str | int | float) -> Scalar:
        if isinstance(value, str):
            return self._text(key, value)
        number = self._next("number")
        if isinstance(value, float):
            return float(number)
        return int("1".ljust(len(str(abs(value))), "0")) + number

    def _text(self, key: str, value: str) -> str:
        for pattern, make in _SHAPES:
            if pattern.fullmatch(value):
                return make(value, self._next(pattern.pattern))
        words = next((words for end, words in _WORDS.items() if key.endswith(end)), _OTHERWISE)
        fake = words.format(n=self._next(words))
        # A login may be part of a URL, which a space would break.
        return fake if " " in value else fake.lower().replace(" ", "-")

    def _next(self, shape: str) -> int:
        self._counts[shape] += 1
        return self._counts[shape]


def _into_digits(value: str, n: int) -> str:
    """Write the number in the positions of the digits, and keep the other characters."""
    digits = iter(f"{n:0{sum(c.isdigit() for c in value)}}")
    return "".join(next(digits) if c.isdigit() else c for c in value)


def _after_prefix(value: str, n: int) -> str:
    """Keep the prefix of an id or secret, which shows its kind."""
    prefix, _, rest = value.rpartition("_")
    return f"{prefix}_{n:0{len(rest)}}"
