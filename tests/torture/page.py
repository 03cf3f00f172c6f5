"""Puts an audit onto the page that people read."""

from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
AUDIT: Final = "audit: written by `python -m tests.torture --publish`"


def publish(text: str, mark: str = AUDIT) -> None:
    """Replaces the last one that stands between such marks."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark.partition(':')[0]} -->\n"
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{PAGE.name} has no place for: {mark}")
    PAGE.write_text(before + begin + text + end + after, encoding="utf-8")
