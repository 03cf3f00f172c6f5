"""The audit of what handlers asked for: an order, one effect per key, jobs, and a pace."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.torture.evidence import Evidence
from tests.torture.faults import OFFSETS_S
from tests.torture.plan import CONCURRENCY, RATE
from tests.torture.record import Acknowledged, Record, Window

PERIOD_S: Final = 0.475
"""Of the rate: half a second, less what passes between two readings of a clock."""
AROUND_JUMP_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What was found. The last three are to be none."""

    ordered: int = 0
    """Effects whose order was looked at."""
    singles: int = 0
    """Keys of which one event was to take effect."""
    most_at_once: int = 0
    """Runs of a handler with a concurrency."""
    most_in_period: int = 0
    """Starts of a handler with a rate."""
    out_of_order: int = 0
    """Effects before that of an event that was acknowledged before theirs was sent."""
    singles_off: int = 0
    """Keys with no effect, or with several."""
    jobs_off: int = 0
    """Events whose handler published, with no job or several; or jobs that nobody published."""

    @property
    def problems(self) -> list[str]:
        found = {
            f"{self.out_of_order} effects out of order": self.out_of_order,
            f"{self.singles_off} keys with more or less than one effect": self.singles_off,
            f"{self.jobs_off} jobs too many or too few": self.jobs_off,
            f"{self.most_at_once} at once of a handler that may be {CONCURRENCY}": (
                self.most_at_once > CONCURRENCY
            ),
            f"{self.most_in_period} starts in half a second of a handler that may {RATE}": (
                self.most_in_period > RATE
            ),
        }
        return [text for text, is_wrong in found.items() if is_wrong]

    def __str__(self) -> str:
        return (
            f"{self.ordered:,} effects in the order of their keys, {self.singles:,} keys with one"
            f" effect; at most {self.most_at_once} runs at once and {self.most_in_period} starts in"
            f" half a second"
        )


def look_at_flow(record: Record, evidence: Evidence) -> Flow:
    """Pure, as the rest of the audit."""
    turns = _turns(record, evidence)
    return Flow(
        ordered=sum(map(len, turns)),
        singles=len(evidence.singles),
        singles_off=_singles_off(record, evidence),
        most_at_once=evidence.most_at_once,
        out_of_order=sum(map(_out_of_order, turns)),
        jobs_off=_jobs_off(evidence),
        most_in_period=max(
            (_most_in_period(starts, record) for starts in evidence.starts.values()), default=0
        ),
    )


def _turns(record: Record, evidence: Evidence) -> list[list[Acknowledged]]:
    """Per key, in the order of their effects. What came through the spool has none: two `serve`
    may claim in another order than they acknowledged."""
    found: defaultdict[str | None, list[Acknowledged]] = defaultdict(list)
    for event_id in evidence.ordered:
        event = record.acknowledged.get(event_id)
        if event is not None and event_id not in evidence.spooled_ids:
            found[event.turn].append(event)
    return list(found.values())


def _out_of_order(events: Sequence[Acknowledged]) -> int:
    """How many have an effect although one whose effect came later was acknowledged before they
    were sent. (What was on its way at the same time may come in either order.)"""
    found, first_of_later = 0, float("inf")
    for event in reversed(events):
        found += first_of_later < event.sent_at
        first_of_later = min(first_of_later, event.at)
    return found


def _singles_off(record: Record, evidence: Evidence) -> int:
    owed = {event.once for event in record.acknowledged.values() if event.once is not None}
    several = sum(n > 1 for n in evidence.singles.values())
    return several + len(owed - evidence.singles.keys())


def _jobs_off(evidence: Evidence) -> int:
    of = {
        handler: Counter({e: n for (e, h), n in evidence.effects.items() if h == handler})
        for handler in ("published", "job")
    }
    return sum(
        of["published"][e] != of["job"][e] for e in of["published"].keys() | of["job"].keys()
    )


def _most_in_period(starts: Sequence[float], record: Record) -> int:
    jumps = [w for w in record.windows if w.target.startswith("postgres ")]
    kept = [at for at in starts if not any(_is_around(w, at - record.epoch_s) for w in jumps)]
    within = (n - bisect_right(kept, at - PERIOD_S) for n, at in enumerate(kept, 1))
    return max(within, default=0)


def _is_around(jump: Window, at: float) -> bool:
    """Started while that clock was wrong, perhaps: its time comes a second time in a long run."""
    real_at = at - OFFSETS_S[jump.target.split()[1]]
    return jump.started_at - AROUND_JUMP_S < real_at < jump.ended_at + AROUND_JUMP_S
