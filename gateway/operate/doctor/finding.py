"""What a check found, and what to do about it."""

from typing import Literal

from typing_extensions import TypedDict


class Finding(TypedDict):
    """One or two lines. Never with a secret in it."""

    level: Literal["ok", "warning", "problem"]
    about: str
    found: str
    advice: str | None
    """None where there is nothing to do."""


def ok(about: str, found: str) -> Finding:
    """As it should be."""
    return Finding(level="ok", about=about, found=found, advice=None)


def warning(about: str, found: str, advice: str) -> Finding:
    """It works, but it would be better otherwise."""
    return Finding(level="warning", about=about, found=found, advice=advice)


def problem(about: str, found: str, advice: str) -> Finding:
    """It does not work, or will lose what it promises to keep."""
    return Finding(level="problem", about=about, found=found, advice=advice)
