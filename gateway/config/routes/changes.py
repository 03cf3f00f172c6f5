"""Compares a `routes.yaml` with the version that a running process has loaded."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.base.problems import Location
from gateway.base.yaml_source import key_path


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ, except for lists of secrets.

    A running `serve` reloads those without a restart.
    """
    return sorted({key_path(at) for at in _differing(before, after, ())})


def _differing(before: Any, after: Any, at: Location) -> Iterator[Location]:
    match at:
        case ("routes", _, "secrets" | "tokens"):
            # A queue without tokens has no URL, so the first and the last token need a restart.
            if bool(before) != bool(after):
                yield at
            return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() | after.keys():
            yield from _differing(before.get(key), after.get(key), (*at, key))
    elif before != after:
        yield at
