"""Rates and latencies of the last minutes and the last hour, from the statistics."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gateway.base.model import Outcome
from gateway.ledger.connection import QUERIES, Executor
from gateway.ledger.statistics import ACKNOWLEDGED, REQUESTS, percentile
from gateway.operations.status.report import RequestCounts

MINUTES: Final = timedelta(minutes=5)
HOUR: Final = timedelta(hours=1)
RUNS: Final = (Outcome.DONE, Outcome.RETRY, Outcome.DEAD)
"""Outcomes decided by the handler. The others say nothing about it."""

ANSWERS: Final = ("accepted", "duplicate", "ignored")
GREETED: Final = "greeted"
"""A handshake, which is answered but is not an event."""
NOT_REFUSED: Final = frozenset({*ANSWERS, GREETED, ACKNOWLEDGED})

Place = tuple[str, str]
"""Route and handler. The handler is empty for the requests of the route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFigures:
    """The counts by route, handler and outcome."""

    hour: Mapping[Place, Mapping[str, int]] = field(default_factory=dict)
    minutes: Mapping[Place, Mapping[str, int]] = field(default_factory=dict)
    times: Mapping[Place, Mapping[int, int]] = field(default_factory=dict)
    last_at: Mapping[tuple[str, str, str], datetime] = field(default_factory=dict)
    """The last time by route, handler and outcome, since statistics began."""

    def requests(self, route: str, *, lately: bool) -> RequestCounts:
        counts = (self.minutes if lately else self.hour).get((route, REQUESTS), {})
        refused = sum(refused_as(counts).values())
        accepted, duplicate, ignored = (counts.get(answer, 0) for answer in ANSWERS)
        return RequestCounts(
            accepted=accepted, duplicate=duplicate, ignored=ignored, refused=refused
        )

    def runs(self, route: str, handler: str, *, lately: bool = False) -> tuple[int, int]:
        """Return the number of runs, and how many of them failed."""
        counts = (self.minutes if lately else self.hour).get((route, handler), {})
        done, *failed = (counts.get(outcome, 0) for outcome in RUNS)
        return done + sum(failed), sum(failed)

    def retried(self, route: str, handler: str) -> int:
        """Return how many runs of the last hour failed and were scheduled for a retry."""
        return self.hour.get((route, handler), {}).get(Outcome.RETRY, 0)

    def took_ms(self, route: str, handler: str, share: float) -> float | None:
        seconds = percentile(self.times.get((route, handler), {}), share)
        return None if seconds is None else round(seconds * 1000, 2)


def refused_as(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of rejected requests by code."""
    return {o: n for o, n in counts.items() if o not in NOT_REFUSED and n}


async def read_figures(ledger: Executor, now: datetime) -> StatusFigures:
    """Read the statistics from the ledger."""
    hour: dict[Place, dict[str, int]] = defaultdict(dict)
    minutes: dict[Place, dict[str, int]] = defaultdict(dict)
    times: dict[Place, dict[int, int]] = {}
    for row in await ledger.fetch(QUERIES["sum_tallies"], now - HOUR, now - MINUTES):
        place = row["route"], row["handler"]
        hour[place][row["outcome"]] = row["n"]
        minutes[place][row["outcome"]] = row["lately"]
    for row in await ledger.fetch(QUERIES["sum_times"], now - HOUR, [ACKNOWLEDGED, *RUNS]):
        buckets = enumerate(row["times"])
        times[row["route"], row["handler"]] = {bucket: n for bucket, n in buckets if n}
    totals = await ledger.fetch(QUERIES["list_totals"])
    return StatusFigures(
        hour=hour,
        minutes=minutes,
        times=times,
        last_at={(r["route"], r["handler"], r["outcome"]): r["last_at"] for r in totals},
    )
