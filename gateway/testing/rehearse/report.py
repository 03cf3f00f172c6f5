"""What a rehearsal says of each handler."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.testing.rehearse.findings import Finding


class Verdict(StrEnum):
    """Whether a handler's body stands to be run twice."""

    SAFE = "safe"
    IDLE = "idle"
    """It did nothing on any event, so nothing can be said of it."""
    UNSAFE = "unsafe"
    FAILED = "failed"
    SKIPPED = "not rehearsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One handler on one route."""

    handler: str
    route: str
    verdict: Verdict
    reason: str | None = None
    """Why it failed, or was not rehearsed."""
    advice: str | None = None
    """What helps one that failed."""
    events: tuple[str, ...] = ()
    schedules: int = 0
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "handler": self.handler,
            "route": self.route,
            "verdict": self.verdict.replace(" ", "_"),
            "reason": self.reason,
            "advice": self.advice,
            "events": list(self.events),
            "schedules": self.schedules,
            "seconds": round(self.seconds, 2),
            "findings": [_as_json(finding) for finding in self.findings],
            "notes": list(self.notes),
        }


def _as_json(finding: Finding) -> dict[str, Any]:
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
