"""Which fields of a payload: `data.object.email`, where `*` is any one step."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

ANY: Final = "*"
PATTERN: Final = r"[^\s.]+(?:\.[^\s.]+)*"
EXPECTED: Final = "the path of a field in the payload, such as data.object.email or items.*.phone"
LONGEST: Final = 300


def fits(step: str, key: str | int) -> bool:
    """Whether a step of a path leads to the field of this name, or to this place of a list."""
    return step in (ANY, str(key))


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Names of fields and places in lists, from the outside in."""

    steps: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what is no path."""
        if len(text) > LONGEST or not re.fullmatch(PATTERN, text):
            raise ValueError(EXPECTED)
        return cls(tuple(text.split(".")))

    def __str__(self) -> str:
        return ".".join(self.steps)

    def covers(self, steps: tuple[str, ...]) -> bool:
        """Whether the value at these steps is redacted by this path: itself, or what it is in."""
        return len(self.steps) <= len(steps) and self.meets(steps)

    def meets(self, steps: Iterable[str]) -> bool:
        """Whether what is there, or around it, or within it, is at these steps."""
        return all(fits(mine, theirs) for mine, theirs in zip(self.steps, steps, strict=False))
