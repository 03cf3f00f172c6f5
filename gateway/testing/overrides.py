"""Set fields of a sample payload by their path. An unknown field is an error, likely a typo."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any


def override(payload: Any, steps: Sequence[str], value: Any) -> None:
    """Set the field at the path. A step into a list is an index."""
    __tracebackhide__ = True
    name, node = ".".join(steps), payload
    for step in steps[:-1]:
        node = node[_key(node, step, name)]
    node[_key(node, steps[-1], name)] = value


def _key(node: Any, step: str, name: str) -> str | int:
    __tracebackhide__ = True
    if isinstance(node, dict):
        if step in node:
            return step
        raise ValueError(f"{name}: the event has no field {step!r}{_hint(node, step)}")
    if isinstance(node, list):
        if step.isdecimal() and int(step) < len(node):
            return int(step)
        raise ValueError(f"{name}: found {step!r} for a place in a list of {len(node)}")
    raise ValueError(f"{name}: there is nothing under {step!r}: it stands in {node!r}")


def _hint(node: dict[str, Any], step: str) -> str:
    if not node:
        return ": there is none, so set it as a whole"
    close = get_close_matches(step, node)
    return f"; did you mean {' or '.join(close)}?" if close else f"; it has {', '.join(node)}"
