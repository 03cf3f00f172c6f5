"""What the harness itself saw: acknowledgements, first sights of effects, faults and when."""

from dataclasses import dataclass, field
from typing import Final

from tests.torture.callee import Call
from tests.torture.plan import HANDLERS

CALM: Final = "(calm)"
"""The name of the time before the first fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """An event to which a 2xx came back. Times are of the harness's monotonic clock."""

    event_id: str
    at: float
    fails: dict[str, int]
    """How often each handler fails on purpose before it succeeds."""
    owed: tuple[str, ...] = HANDLERS
    sent_at: float = 0.0
    """When it was sent first."""
    turn: str | None = None
    once: str | None = None
    """Its key, if its handler acts once per key."""


@dataclass(slots=True, kw_only=True)
class Window:
    """One fault that ran, from its start until the next one began."""

    fault: str
    target: str
    started_at: float
    ended_at: float
    overlaps: bool = False
    """Whether the next fault began before everything had recovered from this one."""
    note: str = ""
    answers: dict[str, int] = field(default_factory=dict)
    """What the senders were told in it."""


@dataclass(slots=True)
class Record:
    """Grows while the run goes on."""

    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    """When the effect of a handler for an event was seen first."""
    windows: list[Window] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """Requests that reached the callee."""
    ordered_calls: list[Call] = field(default_factory=list)
    """Those after its recovery, by order of a person."""
    epoch_s: float = 0.0
    """The wall clock's time at zero of the monotonic clock."""
    _waiting: set[str] = field(default_factory=set)

    def acknowledge(self, event: Acknowledged) -> None:
        """The first acknowledgement counts."""
        if event.event_id in self.acknowledged:
            return
        self.acknowledged[event.event_id] = event
        if not self._complete(event.event_id):
            self._waiting.add(event.event_id)

    def see(self, event_id: str, handler: str, at: float) -> None:
        """The first sight counts. Those that wait for a turn or a pace are seen at the end."""
        if handler not in HANDLERS:
            return
        self.seen.setdefault((event_id, handler), at)
        if self._complete(event_id):
            self._waiting.discard(event_id)

    @property
    def waiting(self) -> int:
        """How many events were acknowledged and still lack an effect."""
        return len(self._waiting)

    def is_whole(self, until: float) -> bool:
        """Whether none of those that were acknowledged by then lacks an effect."""
        return not any(self.acknowledged[e].at <= until for e in self._waiting)

    def give_up(self, until: float) -> None:
        """Waits no longer for those that were acknowledged by then: the audit will tell."""
        self._waiting = {e for e in self._waiting if self.acknowledged[e].at > until}

    def _complete(self, event_id: str) -> bool:
        return all((event_id, handler) in self.seen for handler in HANDLERS)
