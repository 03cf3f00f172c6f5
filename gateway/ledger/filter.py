"""Which events or deliveries a person means."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

ANYTHING = "…"
"""What stands for the parts of an error that differ, where errors are grouped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a person wants to see, or to order something for. Nothing given: no matter which."""

    route: str | None = None
    type: str | None = None
    handler: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    account: str | None = None
    cause: int | None = None
    """Of a dead one."""
    effect: str | None = None
    """The name of an outside effect."""

    @property
    def of_events(self) -> tuple[Any, ...]:
        """As list_events takes them."""
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
        """As the statements on dead letters take them."""
        return *self.of_events, None if self.error is None else part_like(self.error)

    @property
    def of_effects(self) -> tuple[Any, ...]:
        """As the statements on effects of unknown outcome take them."""
        return *self.of_dead, self.effect

    @property
    def type_pattern(self) -> str | None:
        return None if self.type is None else like(self.type)

    @property
    def given(self) -> dict[str, str]:
        """What was asked for, in the order in which the options are documented."""
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
        """What was `given` once."""
        times = {
            name: datetime.fromisoformat(given[name])
            for name in ("since", "until")
            if name in given
        }
        numbers = {"cause": int(given["cause"])} if "cause" in given else {}
        return cls(**(given | times | numbers))  # type: ignore[arg-type]


def like(glob: str) -> str:
    """A glob (`invoice.*`) as a LIKE pattern."""
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def part_like(text: str) -> str:
    """A part of a text as a LIKE pattern: globs, and groups' own words for what differs."""
    return f"%{like(text).replace(ANYTHING, '%')}%"
