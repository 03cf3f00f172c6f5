"""Puts the audit onto the page that people read."""

from pathlib import Path
from typing import Final

from tests.torture.audit import Result, render_markdown

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN: Final = "<!-- audit: written by `python -m tests.torture --publish` -->\n"
END: Final = "<!-- end of audit -->\n"


def publish(result: Result) -> None:
    """Replaces the last audit."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + render_markdown(result) + END + after, encoding="utf-8")
