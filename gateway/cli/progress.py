"""Progress of a long command: a bar on a terminal, otherwise a line every few seconds.

It is written to standard error, so that standard output contains only results.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from gateway.base.units import format_duration

LINE_EVERY_S: Final = 2.0

Show = Callable[[int], None]
"""Takes the count so far."""


@contextmanager
def progress(
    doing: str,
    total: int | None,
    *,
    done: int = 0,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Show]:
    """Show progress towards a total, or only a count if the total is unknown.

    `done` is the initial count, from an earlier command. It is not part of the rate.
    """
    if sys.stderr.isatty():
        with _bar(doing, total, done) as show:
            yield show
        return
    lines = _Lines(doing, total, done, now)
    try:
        yield lines.show
    finally:
        lines.close()


@contextmanager
def _bar(doing: str, total: int | None, done: int) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Count(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(doing, total=total, completed=done)
        yield lambda count: bar.update(task, completed=count)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_count(int(task.completed), None if task.total is None else int(task.total)))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="cyan")


class _Lines:
    def __init__(self, doing: str, total: int | None, done: int, now: Callable[[], float]) -> None:
        self._doing = doing
        self._total = total
        self._now = now
        self._start = self._done = self._shown = done
        self._began_s = now()
        self._next_s = self._began_s + LINE_EVERY_S

    def show(self, done: int) -> None:
        self._done = done
        if self._now() >= self._next_s:
            self._print()

    def close(self) -> None:
        """Print the final count."""
        if self._done != self._shown:
            self._print()

    def _print(self) -> None:
        self._next_s, self._shown = self._now() + LINE_EVERY_S, self._done
        parts = [_count(self._done, self._total)]
        rate = (self._done - self._start) / max(self._now() - self._began_s, 0.001)
        if rate:
            parts.append(f"{rate:,.0f}/s")
        if rate and self._total is not None and self._done < self._total:
            left = timedelta(seconds=int((self._total - self._done) / rate))
            parts.append(f"{format_duration(left)} left")
        typer.echo(f"{self._doing}: {', '.join(parts)}", err=True)


def _count(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"
