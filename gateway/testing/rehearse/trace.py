"""What one run of a handler does, step by step, and where it is made to stop."""

import asyncio
import linecache
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gateway.testing.places import calling_place

SECRET_NAME: Final = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|HOOK|DSN", re.IGNORECASE)
_LOGIN: Final = re.compile(r"(?<=://)[^\s/@:]*:([^\s/@]+)(?=@)")
"""User and password in an address."""
SHORTEST_SECRET: Final = 8


class Killed(BaseException):
    """The run ends here, as by kill -9: whatever it tries afterwards raises this again."""


class Kind(StrEnum):
    """What a step is."""

    STATEMENT = "statement"
    CALL = "call"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Before or after the n-th step of a run."""

    step: int
    is_after: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A statement or an external call."""

    number: int
    kind: Kind
    text: str
    """The SQL, or what is called."""
    place: str | None
    rows: int | None = None
    """How many rows a statement found or changed, where it says so."""
    arguments: tuple[object, ...] = ()
    """Of many executions, those of the first."""
    error: str | None = None
    once: "Once | None" = None
    """The `ctx.once` in which it happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """The `ctx.once` in which a call is made."""

    name: str
    unknown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCall:
    """Something that left the process, or would have."""

    text: str
    """Method and address, as a person would say it."""
    content: str
    """What was sent."""
    is_write: bool
    is_repeatable: bool = False
    """Whether the standard says that a repeat changes nothing: PUT and DELETE."""
    key: str | None = None
    """By which the callee can tell a repeat."""
    place: str | None = None
    once: Once | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A coroutine that nobody awaited: nothing of what it was to do happens."""

    name: str
    place: str | None


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a handler's body."""

    root: Path
    told: list[Any] = field(default_factory=list)
    """The payloads that are known by now, the newest first: what they tell of an object is what a
    request for it is answered with."""
    kill_at: Moment | None = None
    pause_after: int | None = None
    steps: list[Step] = field(default_factory=list)
    calls: list[ExternalCall] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    """The requests whose answers were made up: nobody has said what they are answered with."""
    forgotten: list[Forgotten] = field(default_factory=list)
    is_killed: bool = False
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, kind: Kind, text: str, arguments: tuple[object, ...] = ()) -> Step:
        """A step is about to happen. Raises Killed where it no longer does."""
        self.check()
        step = Step(
            number=len(self.steps),
            kind=kind,
            text=text,
            place=calling_place(self.root) or submitted_at(),
            arguments=arguments,
            once=current_once(),
        )
        self.steps.append(step)
        self._reach(Moment(step=step.number, is_after=False))
        return step

    def finish(self, step: Step) -> None:
        """The step has happened."""
        self._reach(Moment(step=step.number, is_after=True))

    def call(
        self,
        text: str,
        content: str,
        *,
        is_write: bool,
        is_repeatable: bool = False,
        key: str | None = None,
    ) -> None:
        """Something leaves the process. Raises Killed before or after it did."""
        text, content = without_secrets(text), without_secrets(content)
        step = self.begin(Kind.CALL, text)
        self.calls.append(
            ExternalCall(
                text=text,
                content=content,
                is_write=is_write,
                is_repeatable=is_repeatable,
                key=key,
                place=step.place,
                once=current_once(),
            )
        )
        self.finish(step)

    async def pause(self, step: Step) -> None:
        """Waits here where the schedule says so, while another run has its way."""
        if step.number == self.pause_after:
            self.paused.set()
            await self.resumed.wait()

    def check(self) -> None:
        """Raises Killed once the run is dead."""
        if self.is_killed:
            raise Killed

    def _reach(self, moment: Moment) -> None:
        if moment == self.kill_at:
            self.is_killed = True
            raise Killed


_CURRENT: Final[ContextVar[Run | None]] = ContextVar("rehearsed run", default=None)
_ONCE: Final[ContextVar[Once | None]] = ContextVar("ctx.once under way", default=None)
_TASK: Final[ContextVar[str | None]] = ContextVar("where a task was begun", default=None)
_THREAD: Final = threading.local()


def current_run() -> Run | None:
    """The run whose code is executing."""
    return _CURRENT.get()


def current_once() -> Once | None:
    """The `ctx.once` whose function is executing."""
    return _ONCE.get()


@contextmanager
def running(run: Run) -> Iterator[None]:
    """What happens inside belongs to this run."""
    token = _CURRENT.set(run)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def inside(once: Once) -> Iterator[None]:
    """Calls that happen inside are guarded by this `ctx.once`."""
    token = _ONCE.set(once)
    try:
        yield
    finally:
        _ONCE.reset(token)


@contextmanager
def submitted(place: str | None) -> Iterator[None]:
    """Remembers where a thread's work was begun: its own frames may show nothing of the user's."""
    _THREAD.place = place
    try:
        yield
    finally:
        _THREAD.place = None


def begin_task(place: str | None) -> None:
    """Remembers where the task was begun to which the current context belongs."""
    if place is not None:
        _TASK.set(place)


def submitted_at() -> str | None:
    """Where the work of this thread or task was begun."""
    place: str | None = getattr(_THREAD, "place", None)
    return place or _TASK.get()


def without_secrets(text: str) -> str:
    """With the names of environment variables instead of what is secret in them: reports are read
    in the logs of builds."""
    for secret, name in sorted(_secrets(), key=lambda found: -len(found[0])):
        text = text.replace(secret, f"${name}")
    return _LOGIN.sub("...", text)


def _secrets() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        login = _LOGIN.search(value)
        if len(value) >= SHORTEST_SECRET and (login or SECRET_NAME.search(name)):
            yield value, name
        if login and len(login[1]) >= SHORTEST_SECRET:
            yield login[1], name


def source_line(root: Path, place: str | None) -> str | None:
    """The line of code at a place."""
    if place is None:
        return None
    file, _, line = place.rpartition(":")
    return linecache.getline(str(root / file), int(line)).strip() or None
