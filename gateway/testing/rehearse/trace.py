"""The steps of one run of a handler, and the points at which it is made to stop."""

import asyncio
import linecache
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gateway.testing.guard import calling_place, submitted_at

SECRET_NAME: Final = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|HOOK|DSN", re.IGNORECASE)
_LOGIN: Final = re.compile(r"(?<=://)[^\s/@:]*:([^\s/@]+)(?=@)")
"""Matches the user and password in a URL."""
SHORTEST_SECRET: Final = 8


class Killed(BaseException):
    """Ends the run as by kill -9: each later step of the run raises this again."""


class StepKind(StrEnum):
    """The kind of a step."""

    STATEMENT = "statement"
    CALL = "call"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A way in which an external call fails."""

    words: str
    status: int | None = None
    """The status of the response, or None if there is no response."""
    error: Callable[[], Exception] | None = None
    """Creates the exception that the client raises."""
    is_received: bool = False
    """Whether the callee has received the call and acted on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """The callee is down for one run: from this step on, every call like it fails."""

    step: int
    outage: Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The point before or after the n-th step of a run."""

    step: int
    is_after: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A statement or an external call."""

    number: int
    kind: StepKind
    text: str
    """The SQL, or a description of the call."""
    place: str | None
    rows: int | None = None
    """The number of rows that a statement found or changed, if Postgres reports it."""
    arguments: tuple[object, ...] = ()
    """The arguments; of `executemany`, the arguments of the first execution."""
    error: str | None = None
    once: "Once | None" = None
    """The `ctx.once` in which the step happens."""
    outages: tuple[Outage, ...] = ()
    """The ways in which a call can fail."""

    @property
    def at(self) -> str:
        """The place in brackets, for the description of a schedule, or nothing."""
        return f" ({self.place})" if self.place else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """The `ctx.once` in which a call is made."""

    name: str
    unknown: str
    per: str | None = None
    """The value of `per`: the object for which it happens once, if that is not the delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCall:
    """A call that left the process, or would have left it outside a rehearsal."""

    text: str
    """Method and address, in readable form."""
    content: str
    """The content that was sent."""
    is_write: bool
    is_repeatable: bool = False
    """Whether a repeat changes nothing according to the HTTP standard: PUT and DELETE."""
    key: str | None = None
    """The idempotency key, by which the callee can recognize a repeat."""
    place: str | None = None
    once: Once | None = None
    outage: Outage | None = None
    """How the call failed."""

    @property
    def is_received(self) -> bool:
        """Whether the callee has received the call and acted on it."""
        return self.outage is None or self.outage.is_received


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A coroutine that was never awaited, so its code never runs."""

    name: str
    place: str | None


@dataclass(slots=True, kw_only=True)
class RehearsedRun:
    """One run of a handler's body."""

    root: Path
    known: list[Any] = field(default_factory=list)
    """The payloads that are known at this point, the newest first.

    A request for an object is answered with the object from these payloads, if one has it.
    """
    kill_at: Moment | None = None
    pause_after: int | None = None
    failing: Failing | None = None
    has_seen_status: bool = False
    """Whether the handler read the status of an error response."""
    steps: list[Step] = field(default_factory=list)
    calls: list[ExternalCall] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    """The requests whose responses were not given by the user with `--answers`."""
    forgotten: list[Forgotten] = field(default_factory=list)
    kept: list[Once] = field(default_factory=list)
    """Each `ctx.once` that made no call, because an earlier one was done or is unknown."""
    is_killed: bool = False
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, kind: StepKind, text: str, arguments: tuple[object, ...] = ()) -> Step:
        """Record the start of a step. Raises Killed if the run ends before it."""
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
        """Record the end of a step. Raises Killed if the run ends after it."""
        self._reach(Moment(step=step.number, is_after=True))

    def call(
        self,
        text: str,
        content: str,
        *,
        is_write: bool,
        is_repeatable: bool = False,
        key: str | None = None,
        outages: tuple[Outage, ...] = (),
    ) -> Outage | None:
        """Record an external call, and return how it fails, or None.

        Raises Killed if the run ends before or after the call.
        """
        text, content = without_secrets(text), without_secrets(content)
        step = self.begin(StepKind.CALL, text)
        step.outages = outages
        outage = self._outage(step)
        self.calls.append(
            ExternalCall(
                text=text,
                content=content,
                is_write=is_write,
                is_repeatable=is_repeatable,
                key=key,
                place=step.place,
                once=current_once(),
                outage=outage,
            )
        )
        self.finish(step)
        return outage

    async def pause(self, step: Step) -> None:
        """Wait after this step if the schedule says so, while another run proceeds."""
        if step.number == self.pause_after:
            self.paused.set()
            await self.resumed.wait()

    def check(self) -> None:
        """Raise Killed if the run has been killed."""
        if self.is_killed:
            raise Killed

    def _outage(self, step: Step) -> Outage | None:
        if self.failing is None or step.number < self.failing.step:
            return None
        is_down = step.text == self.steps[self.failing.step].text
        return self.failing.outage if is_down else None

    def _reach(self, moment: Moment) -> None:
        if moment == self.kill_at:
            self.is_killed = True
            raise Killed


_CURRENT: Final[ContextVar[RehearsedRun | None]] = ContextVar("rehearsed run", default=None)
_ONCE: Final[ContextVar[Once | None]] = ContextVar("ctx.once under way", default=None)


def current_run() -> RehearsedRun | None:
    """Return the run whose code is executing."""
    return _CURRENT.get()


def current_once() -> Once | None:
    """Return the `ctx.once` whose function is executing."""
    return _ONCE.get()


@contextmanager
def running(run: RehearsedRun) -> Iterator[None]:
    """Attribute the steps inside the block to this run."""
    token = _CURRENT.set(run)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def inside(once: Once) -> Iterator[None]:
    """Attribute the calls inside the block to this `ctx.once`."""
    token = _ONCE.set(once)
    try:
        yield
    finally:
        _ONCE.reset(token)


def without_secrets(text: str) -> str:
    """Replace the secrets from environment variables by the names of the variables.

    Reports are read in the logs of builds.
    """
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
    """Return the line of code at `file:line`."""
    if place is None:
        return None
    file, _, line = place.rpartition(":")
    return linecache.getline(str(root / file), int(line)).strip() or None
