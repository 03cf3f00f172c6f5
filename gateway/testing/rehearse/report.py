"""The report of a rehearsal on each handler. It claims no more than was tried."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.testing.rehearse.findings import RehearsalFinding


class Verdict(StrEnum):
    """The result of rehearsing a handler: whether it is safe to run again."""

    SAFE = "safe to run again"
    """Only in the ways that were tried (`Report.tried`)."""
    IDLE = "did nothing"
    """It neither wrote nor sent anything on any event, so nothing could be tried."""
    UNSAFE = "not safe to run again"
    FAILED = "failed"
    """No single run ended as expected, so nothing could be tried."""
    SKIPPED = "not rehearsed"


class Way(StrEnum):
    """A way to run a handler again, with the name used in the report."""

    TWICE = "twice in a row"
    KILLED = "killed half-way"
    TIMED_OUT = "timed out before the commit"
    AT_ONCE = "twice at the same time"
    REVERSED = "a later event first"
    TOGETHER = "two events at the same time"
    OUTAGE = "calls that fail"


def count_ways(schedules: Iterable[str]) -> Mapping[Way, int]:
    """Count how often each way was tried, from the descriptions of the schedules."""
    found = Counter(way for words in schedules if (way := _way(words)) is not None)
    return {way: found[way] for way in Way if found[way]}


def _way(words: str) -> Way | None:
    """Return the way, or None for a reference: a single run, or two events one after the other."""
    if words == "run once" or words.endswith((", one after the other", ", in order")):
        return None
    if words.startswith(("run twice in a row", "killed ", "timed out before the commit")):
        return {"run": Way.TWICE, "killed": Way.KILLED, "timed": Way.TIMED_OUT}[words.split()[0]]
    if words.startswith("later event first"):
        return Way.REVERSED
    if " at the same time" in words:
        return Way.AT_ONCE if words.startswith("run twice") else Way.TOGETHER
    return Way.OUTAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result for one handler on one route."""

    handler: str
    route: str
    verdict: Verdict
    reason: str | None = None
    """Why the handler failed or was not rehearsed."""
    advice: str | None = None
    """How to fix a handler that failed."""
    events: tuple[str, ...] = ()
    schedules: int = 0
    tried: Mapping[Way, int] = field(default_factory=dict)
    """How often each way to run the handler again was tried."""
    findings: tuple[RehearsalFinding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    unguarded: tuple[str, ...] = ()
    """Imported packages that may have connected in C, because the kernel did not refuse it."""

    @property
    def not_tried(self) -> tuple[Way, ...]:
        """The ways to run the handler again that were not tried at all."""
        return tuple(way for way in Way if way not in self.tried)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data."""
        return {
            "handler": self.handler,
            "route": self.route,
            "verdict": _name(self.verdict),
            "reason": self.reason,
            "advice": self.advice,
            "events": list(self.events),
            "schedules": self.schedules,
            "tried": {_name(way): number for way, number in self.tried.items()},
            "not_tried": [_name(way) for way in self.not_tried],
            "seconds": round(self.seconds, 2),
            "findings": [_as_json(finding) for finding in self.findings],
            "notes": list(self.notes),
            "unguarded": list(self.unguarded),
        }


def _name(value: Verdict | Way) -> str:
    return value.replace(" ", "_").replace("-", "_")


def _as_json(finding: RehearsalFinding) -> dict[str, Any]:
    return {
        "fault": finding.fault,
        "schedule": finding.schedule,
        "event": finding.event,
        "subject": finding.subject,
        "place": finding.place,
        "source": finding.source,
        "statement": finding.statement,
        "error": finding.error,
        "rows": [
            {"expected": change.before, "found": change.after}
            for change in (finding.difference.changes if finding.difference else ())
        ],
        "calls": [{"call": call.text, "content": call.content} for call in finding.calls],
        "calls_expected": finding.expected_calls,
        "advice": finding.advice,
    }
