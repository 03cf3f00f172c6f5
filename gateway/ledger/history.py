"""How it has been going: counts per minute or hour, and times, over a span. From tallies alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.ledger.connection import Executor
from gateway.ledger.histogram import percentile
from gateway.ledger.queries import QUERIES
from gateway.ledger.tallies import ACKNOWLEDGED
from gateway.model import Outcome

HOUR: Final = timedelta(hours=1)
TAKEN: Final = frozenset({"accepted", "duplicate", "ignored", ACKNOWLEDGED})
"""All other outcomes of requests are the codes of refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How far back, in which steps: minutes, or hours."""

    length: timedelta
    step: timedelta

    @property
    def steps(self) -> int:
        return self.length // self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened in each step."""

    start: datetime
    requests: Sequence[Mapping[str, int]]
    """By outcome; all refusals together as `refused`."""
    runs: Sequence[Mapping[str, int]]
    acknowledged: Mapping[int, int]
    """How many took how long, of the whole span."""
    ran: Mapping[int, int]

    def acknowledged_ms(self, share: float) -> float | None:
        return _ms(percentile(self.acknowledged, share))

    def ran_ms(self, share: float) -> float | None:
        return _ms(percentile(self.ran, share))


async def read_history(ledger: Executor, span: Span) -> History:
    """Reads as many rows as there are steps and outcomes, however many events and handlers."""
    by_hour = span.step >= HOUR
    name = "history_by_hour" if by_hour else "history_by_minute"
    start: datetime = await ledger.fetchval(
        QUERIES["history_start"], "hour" if by_hour else "minute", span.length - span.step
    )
    requests = [defaultdict[str, int](int) for _ in range(span.steps)]
    runs = [defaultdict[str, int](int) for _ in range(span.steps)]
    for row in await ledger.fetch(QUERIES[name], start):
        step = (row["at"] - start) // span.step
        if 0 <= step < span.steps:
            if row["is_request"]:
                outcome = row["outcome"] if row["outcome"] in TAKEN else "refused"
                requests[step][outcome] += row["n"]
            else:
                runs[step][row["outcome"]] += row["n"]
    name = "times_by_hour" if by_hour else "times_by_minute"
    times: dict[bool, dict[int, int]] = {True: {}, False: {}}
    outcomes = [ACKNOWLEDGED, Outcome.DONE, Outcome.RETRY, Outcome.DEAD]
    for row in await ledger.fetch(QUERIES[name], start, outcomes):
        times[row["is_request"]][row["bucket"]] = row["n"]
    return History(
        start=start, requests=requests, runs=runs, acknowledged=times[True], ran=times[False]
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
