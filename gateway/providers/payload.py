"""Read text and objects from a verified body. Anything unexpected raises BadPayload."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import orjson

from gateway.base.errors import BadPayload

MAX_TEXT_CHARS: Final = 255
_MAX_SHOWN_CHARS: Final = 60
# Postgres rejects NUL and lone surrogates in text. The other control
# characters would reach terminals.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def parse_json(document: bytes) -> Any:
    try:
        # orjson rejects bad UTF-8, lone surrogates and more than 1024 levels with the same error.
        return orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise BadPayload(f"not JSON: {error.msg} at character {error.pos}") from None


def parse_object(document: bytes) -> dict[str, Any]:
    value = parse_json(document)
    if not isinstance(value, dict):
        raise BadPayload(f"body: found {describe(value)}; expected a JSON object")
    return value


def require_text(document: Mapping[str, Any], key: str) -> str:
    """Return a required, non-empty text."""
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise BadPayload(f"`{key}`: found {describe(value)}; expected text")
    return check_text(value, key)


def check_text(text: str, key: str) -> str:
    """Return the text unchanged if it can be stored and shown."""
    if len(text) > MAX_TEXT_CHARS:
        raise BadPayload(
            f"`{key}`: found {len(text)} characters; expected at most {MAX_TEXT_CHARS}"
        )
    if _UNPRINTABLE.search(text):
        raise BadPayload(f"`{key}`: found {describe(text)}; expected no control characters")
    return text


def is_text(value: object) -> TypeGuard[str]:
    """Whether an optional value is text that can be stored and shown."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_TEXT_CHARS
        and not _UNPRINTABLE.search(value)
    )


def text_at(document: object, *path: str) -> str | None:
    """Return the text at a path of keys, or None if it is absent or cannot be stored and shown."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if is_text(document) else None


def describe(value: object) -> str:
    """Describe a JSON value in a few words.

    The repr of a deep value would exceed the recursion limit.
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return ascii(value[:_MAX_SHOWN_CHARS] if isinstance(value, str) else value)
