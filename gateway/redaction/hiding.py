"""Takes redacted values out of texts that may quote them: errors, results and lines of logs."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

Hide = Callable[[str], str]

SHORTEST: Final = 3
"""A shorter value stands nearly everywhere by chance, and is not looked for."""
_TELLING: Final = 6
"""A shorter one, or a number, is replaced only where it stands for itself."""
MOST: Final = 1000
"""With more values to look for, the whole text is hidden."""
MOST_CHARS: Final = 10_000
"""The same for their length together: a pattern for a megabyte takes half a minute to make."""
_ENCODED: Final = "(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"


def as_it_is(text: str) -> str:
    """Hides nothing."""
    return text


def hide_values(values: Iterable[Any], stand_in: str) -> Hide:
    """Replaces these values, and what is in them, in the forms in which Python, JSON, Postgres and
    URLs quote them. What was cut short or calculated with cannot be found."""
    found: dict[str, str] = {}
    scalars = list(islice(_scalars(values), MOST + 1))
    if len(scalars) > MOST or sum(len(str(value)) for value in scalars) > MOST_CHARS:
        return lambda _: stand_in
    for value in scalars:
        for form in _forms(value):
            if len(form) >= SHORTEST and form != stand_in:
                found[form] = _pattern(form, is_text=isinstance(value, str))
    if not found:
        return as_it_is
    longest_first = sorted(found, key=len, reverse=True)
    pattern = re.compile("|".join(found[form] for form in longest_first))
    return lambda text: pattern.sub(stand_in, text)


def hide_in(value: Any, hide: Hide) -> Any:
    """The same for all texts within a value."""
    match value:
        case str():
            return hide(value)
        case dict():
            return {hide_in(key, hide): hide_in(part, hide) for key, part in value.items()}
        case list() | tuple():
            return [hide_in(part, hide) for part in value]
        case None | bool():
            return value
    text = str(value)
    return value if hide(text) == text else hide(text)


def _scalars(values: Iterable[Any]) -> Iterator[str | int | float]:
    stack = list(values)
    while stack:
        value = stack.pop()
        match value:
            case dict():  # its keys are names of fields, which texts are full of
                stack += value.values()
            case list():
                stack += value
            case bool() | None:
                pass
            case _:
                yield value


def _forms(value: str | int | float) -> set[str]:
    text = str(value)
    one_line = " ".join(text.split())
    return {
        *(text, one_line, repr(text)[1:-1], ascii(text)[1:-1]),
        *(json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]),
    }


def _pattern(form: str, *, is_text: bool) -> str:
    pattern = in_any_form(form)
    if is_text and len(form) >= _TELLING:
        return pattern
    return rf"{_ENCODED}{pattern}(?![A-Za-z0-9])"


def in_any_form(text: str) -> str:
    """A pattern for a text as it is, and percent-encoded in whole or in part."""
    return "".join(map(_character_in_any_form, text))


def _character_in_any_form(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    encoded = "".join(f"%{byte:02x}" for byte in character.encode(errors="surrogatepass"))
    space = r"|\+" if character == " " else ""
    return f"(?:{re.escape(character)}|(?i:{encoded}){space})"
