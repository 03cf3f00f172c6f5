"""Set values in a document at the places where the sender would put them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gateway.providers.schemes.template import Template


def choose(choices: Sequence[Template], value: str) -> Template | None:
    """Return the first template that can produce the value."""
    return next((choice for choice in choices if choice.gives(value)), None)


def plant(document: Any, keys: tuple[str, ...], value: Any) -> None:
    """Set a value in a JSON document and create the missing containers on its path.

    If the last key is `*name`, the value becomes a field name.
    """
    for key, after in pairwise(keys):
        made: Any = [] if after.isdigit() else {}
        document = _enter(document, key, made)
        if not isinstance(document, dict | list):
            return
    last = keys[-1]
    if isinstance(document, list):
        _enter(document, last, value)
        document[int(last)] = value
    elif last.startswith("*"):
        document.setdefault(value, {})
    else:
        document[last] = value


def _enter(document: Any, key: str, made: Any) -> Any:
    if isinstance(document, dict):
        return document.setdefault(key, made)
    if not key.isdigit():
        return None
    while len(document) <= int(key):
        document.append(made)
    return document[int(key)]
