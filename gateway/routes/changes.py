"""What is different in a `routes.yaml` that was edited while a process runs by it."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.notation.problems import Location
from gateway.notation.yaml_source import key_path


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The keys that differ, but for what a running `serve` can take over: the lists of secrets."""
    return sorted({key_path(at) for at in _differing(before, after, ())})


def _differing(before: Any, after: Any, at: Location) -> Iterator[Location]:
    match at:
        case ("routes", _, "secrets" | "tokens"):
            # Whether there are any decides whether there is a door at all.
            if bool(before) != bool(after):
                yield at
            return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() | after.keys():
            yield from _differing(before.get(key), after.get(key), (*at, key))
    elif before != after:
        yield at
