"""Graceful everywhere: whoever stops a process leaves it the time to end what it has begun."""

import re
from datetime import timedelta
from typing import Final

import pytest

from gateway.base.units import parse_duration
from gateway.config.settings import Settings
from gateway.processes.work import CLOSE_S
from tests.deploy.files import DEPLOY

STOPS: Final = r"^\s*(?:stop_grace_period: |TimeoutStopSec=|terminationGracePeriodSeconds: )(\w+)"
CLOSING: Final = timedelta(seconds=CLOSE_S)
"""After the grace time: connections are closed, politely at first."""


def _stops() -> list[tuple[str, timedelta]]:
    files = [file for file in DEPLOY.rglob("*") if file.is_file()]
    return [
        (str(file.relative_to(DEPLOY)), parse_duration(text if text[-1].isalpha() else f"{text}s"))
        for file in sorted(files)
        for text in re.findall(STOPS, file.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def _longest(name: str, setting: str, default: timedelta) -> timedelta:
    """That the file asks for, or what is the case by default."""
    pattern = rf"(?m)^[^#\n]*GATEWAY_{setting}(?:[:=] ?|, value: )(\w+)"
    texts = re.findall(pattern, (DEPLOY / name).read_text(encoding="utf-8"))
    return max([default, *(parse_duration(text) for text in texts)])


def test_every_way_of_deploying_says_how_long_it_waits() -> None:
    parts = {name.partition("/")[0] for name, _ in _stops()}
    assert parts == {"compose.yaml", "kubernetes", "systemd"}


@pytest.mark.parametrize(("name", "stop"), _stops(), ids=[name for name, _ in _stops()])
def test_the_wait_is_longer_than_the_drain(name: str, stop: timedelta) -> None:
    grace = _longest(name, "GRACE", Settings().grace)
    drain = grace + _longest(name, "LINGER", Settings().linger) + CLOSING
    assert stop > drain, f"{name} kills after {stop}, but a drain may take {drain}"
