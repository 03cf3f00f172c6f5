"""Filters for events and deliveries."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from gateway.base.names import Names

CONCEALED: Final = "its text is encrypted"
_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}(?=:|$)")


def outline_of(text: str) -> str:
    """Return the first word of an error's text if it is the name of a class."""
    name = _CLASS.match(text)
    return f"{name[0] if name else 'an error'}, {CONCEALED}"


ANYTHING = "…"
"""Stands for the variable parts of an error in the text of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter for a listing or a bulk operation. A field that is not set matches everything."""

    route: str | None = None
    type: str | None = None
    handler: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    account: str | None = None
    cause: int | None = None
    """The cause of a dead letter."""
    effect: str | None = None
    """The name of an external effect."""

    def identified(self, names: Names) -> Self:
        """Return the filter with identities in place of names."""
        route = None if self.route is None else names.routes.identity(self.route)
        handler = None if self.handler is None else names.handlers.identity(self.handler)
        return replace(self, route=route, handler=handler)

    @property
    def of_events(self) -> tuple[Any, ...]:
        """The arguments of list_events."""
        return (
            self.route,
            self.type_pattern,
            self.handler,
            self.since,
            self.until,
            self.account,
        )

    @property
    def of_dead(self) -> tuple[Any, ...]:
        """The arguments of the statements on dead letters."""
        return *self.of_events, None if self.error is None else part_like(self.error)

    @property
    def of_effects(self) -> tuple[Any, ...]:
        """The arguments of the statements on effects with an unknown outcome."""
        return *self.of_dead, self.effect

    @property
    def type_pattern(self) -> str | None:
        return None if self.type is None else like(self.type)

    @property
    def given(self) -> dict[str, str]:
        """The fields that are set, in the order in which the options are documented."""
        values = {
            "route": self.route,
            "type": self.type,
            "handler": self.handler,
            "error": self.error,
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "account": self.account,
            "cause": None if self.cause is None else str(self.cause),
            "effect": self.effect,
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def read(cls, given: dict[str, str]) -> Self:
        """Rebuild a filter from its `given` fields."""
        times = {
            name: datetime.fromisoformat(given[name])
            for name in ("since", "until")
            if name in given
        }
        numbers = {"cause": int(given["cause"])} if "cause" in given else {}
        return cls(**(given | times | numbers))  # type: ignore[arg-type]


def like(glob: str) -> str:
    """Convert a glob (`invoice.*`) to a LIKE pattern."""
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def part_like(text: str) -> str:
    """Convert a part of a text to a LIKE pattern.

    Globs and the placeholder of groups are wildcards.
    """
    return f"%{like(text).replace(ANYTHING, '%')}%"
