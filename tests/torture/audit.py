"""Compares three lists - acknowledged, claimed, applied - and says per fault what was lost."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple, Self

from tests.torture.calls import Calls, Listed, Resolution, audit_calls
from tests.torture.evidence import Delivery, Evidence
from tests.torture.flow import Flow, look_at_flow
from tests.torture.plan import SHAPES
from tests.torture.record import CALM, Acknowledged, Record, Window
from tests.torture.stage import HANDLER_TIMEOUT_S, LEASE_S, SWEEP_S

MEASURING_S: Final = 1
"""The watcher looks ten times a second, on a machine that all the others keep busy."""
BOUND_S: Final = LEASE_S + HANDLER_TIMEOUT_S + SWEEP_S + MEASURING_S
BOUND: Final = (
    f"lease {LEASE_S} s + handler's timeout {HANDLER_TIMEOUT_S} s + sweep {SWEEP_S} s"
    f" + measuring {MEASURING_S} s"
)
MOST_OFFENDERS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the senders counted."""

    events: int
    held_back_s: float
    """How long no new events were sent, because too many waited for their effects."""
    retries: int
    given_up: int
    """Events of a sender that never retries, to which no 2xx came: not acknowledged, not owed."""
    duplicates: int
    duplicates_answered: int
    answers: Mapping[str, int]
    unexpected: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One fault in the table."""

    fault: str
    runs: int
    acknowledged: int
    lost: int
    twice: int
    recovery_s: float
    """The longest, from the acknowledgement or the end of the fault, whichever was later, among
    those whose handlers do not fail on purpose."""
    late: int
    """Effects that took longer than they may."""
    silence_s: float = 0.0
    """The longest time without any acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Over all faults."""

    acknowledged: int
    claimed: int
    effects: int
    lost: int
    twice: int
    recovery_s: float
    claimed_only: int
    """In the ledger though no 2xx arrived: the answer got lost on its way."""
    effects_without_claim: int
    renamed: int
    """Effects of handlers under their new names."""
    tallies_off: int
    """The second handler's sum, less its effects."""
    dead: int
    unfinished: int
    spooled: int
    leases_taken_back: int
    handler_timeouts: int
    attempts_burned: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How the run was made, for whoever wants to make it again."""

    seed: int
    command: str
    date: str
    machine: str
    duration_s: float
    wanted: Sequence[str]
    """The faults that were asked for."""
    least_acknowledged: int = 0
    stuck: str = ""
    """The fault at which the run was ended, because not everything came back after it."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Those that this machine does not permit, and why."""
    allow_missing: bool = False
    is_timed: bool = True
    """Whether a recovery that takes too long is a failure."""
    processes_restarted: int = 0
    schedule: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that is known at the end."""

    run: Run
    sent: Sent
    lines: Sequence[Line]
    totals: Totals
    problems: Sequence[str]
    offenders: Sequence[str]
    """Events that were lost or came twice, with what the ledger says of them."""
    slowest: Sequence[str]
    """Those that took longest."""
    flow: Flow = field(default_factory=Flow)
    calls: Calls = field(default_factory=Calls)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            run=Run(**document["run"]),
            sent=Sent(**document["sent"]),
            lines=[Line(**line) for line in document["lines"]],
            totals=Totals(**document["totals"]),
            problems=document["problems"],
            offenders=document["offenders"],
            slowest=document["slowest"],
            flow=Flow(**document["flow"]),
            calls=Calls(**document["calls"]),
        )


class Recovery(NamedTuple):
    """How long an effect took from its acknowledgement, or from the end of the fault if later."""

    event_id: str
    fault: str
    seconds: float
    fails: int
    """How often its handler failed on purpose: each of these runs has all the time of one."""

    @property
    def is_late(self) -> bool:
        return self.seconds > (self.fails + 1) * BOUND_S


@dataclass(slots=True)
class _Tally:
    """One fault's line while it is being counted."""

    runs: int = 0
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    recovery_s: float = 0.0
    late: int = 0
    silence_s: float = 0.0


def judge(
    run: Run,
    sent: Sent,
    record: Record,
    evidence: Evidence,
    listed: Sequence[Listed] = (),
    resolution: Resolution | None = None,
) -> Result:
    """The audit. Pure: the same lists give the same verdict."""
    lost = {e: why for e, ack in record.acknowledged.items() if (why := _missing(ack, evidence))}
    twice = _doubled(evidence)
    recoveries = _recoveries(record)
    lines = _lines(record, recoveries, lost, twice)
    totals = _totals(record, evidence, lines, lost, twice)
    flow = look_at_flow(record, evidence)
    calls = audit_calls(
        record, evidence.callers, listed, evidence.hidden, resolution or Resolution()
    )
    return Result(
        run=run,
        sent=sent,
        lines=lines,
        totals=totals,
        problems=[*_problems(run, sent, lines, totals), *flow.problems, *calls.problems],
        offenders=_offenders(lost | twice, evidence),
        slowest=_offenders(
            {r.event_id: f"{r.seconds:.1f} s after {r.fault}" for r in _worst(recoveries)},
            evidence,
        ),
        flow=flow,
        calls=calls,
    )


def _missing(event: Acknowledged, evidence: Evidence) -> str | None:
    """What an acknowledged event lacks."""
    if event.event_id not in evidence.claimed:
        return "acknowledged, but not in the ledger"
    absent = [handler for handler in event.owed if not evidence.effects[event.event_id, handler]]
    return f"no effect of {' and '.join(absent)}" if absent else None


def _doubled(evidence: Evidence) -> dict[str, str]:
    found: dict[str, str] = {}
    for (event_id, handler), n in evidence.effects.items():
        if n > 1:
            found[event_id] = f"{n} effects of {handler}"
    return found


def _lines(
    record: Record,
    recoveries: Iterable[Recovery],
    lost: Mapping[str, str],
    twice: Mapping[str, str],
) -> list[Line]:
    starts = [window.started_at for window in record.windows]
    stats = {window.fault: _Tally() for window in record.windows}
    for window in record.windows:
        stats[window.fault].runs += window.fault != CALM
    for event in record.acknowledged.values():
        tally = stats[record.windows[_place(starts, event.at)].fault]
        tally.acknowledged += 1
        tally.lost += event.event_id in lost
        tally.twice += event.event_id in twice
    for recovery in recoveries:
        tally = stats[recovery.fault]
        tally.late += recovery.is_late
        if not recovery.fails:
            tally.recovery_s = max(tally.recovery_s, recovery.seconds)
    for window, silence_s in zip(record.windows, _silences(record), strict=True):
        tally = stats[window.fault]
        tally.silence_s = max(tally.silence_s, silence_s)
    order = {fault: n for n, fault in enumerate([CALM, *SHAPES])}
    return [
        Line(fault=fault, **asdict(tally))
        for fault, tally in sorted(stats.items(), key=lambda i: order.get(i[0], len(order)))
    ]


def _silences(record: Record) -> list[float]:
    """For each window, the longest time between two acknowledgements, the second one in it."""
    starts = [window.started_at for window in record.windows]
    found = [0.0] * len(starts)
    for before, after in pairwise(sorted(event.at for event in record.acknowledged.values())):
        place = _place(starts, after)
        found[place] = max(found[place], round(after - before, 2))
    return found


def _recoveries(record: Record) -> list[Recovery]:
    """How long each effect took, the longest first. One that never came is a loss."""
    windows = record.windows
    starts = [window.started_at for window in windows]
    quiet_from = _quiet_from(windows)
    found = []
    for (event_id, handler), seen_at in record.seen.items():
        event = record.acknowledged.get(event_id)
        if event is None:
            continue
        place = _place(starts, event.at)
        due_from = max(event.at, quiet_from[place])
        following = starts[place + 1] if place + 1 < len(starts) else seen_at
        if due_from < following < min(seen_at, due_from + BOUND_S):
            # Not late yet when the next fault began: what delayed it from then on is that one.
            place += 1
            due_from = quiet_from[place]
        seconds = round(max(seen_at - due_from, 0.0), 2)
        found.append(Recovery(event_id, windows[place].fault, seconds, event.fails[handler]))
    return sorted(found, key=lambda recovery: (recovery.fails, -recovery.seconds))


def _worst(recoveries: Sequence[Recovery]) -> list[Recovery]:
    late = [recovery for recovery in recoveries if recovery.is_late]
    return (late or list(recoveries))[:MOST_OFFENDERS]


def _place(starts: Sequence[float], at: float) -> int:
    """In whose window a moment lies."""
    return max(bisect_right(starts, at) - 1, 0)


def _quiet_from(windows: Sequence[Window]) -> list[float]:
    """When each fault was over, together with those that began before its damage was repaired."""
    ends: list[float] = []
    for window in reversed(windows):
        later = ends[-1] if window.overlaps and ends else window.ended_at
        ends.append(max(window.ended_at, later))
    return ends[::-1]


def _totals(
    record: Record,
    evidence: Evidence,
    lines: Iterable[Line],
    lost: Mapping[str, str],
    twice: Mapping[str, str],
) -> Totals:
    statuses = Counter(d.status for rows in evidence.deliveries.values() for d in rows)
    of_tally = sum(n for (_, handler), n in evidence.effects.items() if handler == "tally")
    return Totals(
        acknowledged=len(record.acknowledged),
        claimed=len(evidence.claimed),
        effects=evidence.effects.total(),
        lost=len(lost),
        twice=len(twice),
        recovery_s=max(line.recovery_s for line in lines),
        claimed_only=len(evidence.claimed.keys() - record.acknowledged.keys()),
        effects_without_claim=sum(
            n for (event_id, _), n in evidence.effects.items() if event_id not in evidence.claimed
        ),
        renamed=evidence.renamed,
        tallies_off=evidence.stats - of_tally,
        dead=statuses["dead"],
        unfinished=statuses["pending"] + statuses["running"],
        spooled=len(evidence.spooled_ids),
        leases_taken_back=evidence.leases_taken_back,
        handler_timeouts=evidence.handler_timeouts,
        attempts_burned=evidence.attempts_burned,
        outcomes=evidence.outcomes,
    )


def _problems(run: Run, sent: Sent, lines: Sequence[Line], totals: Totals) -> list[str]:
    ran = {line.fault for line in lines}
    late = [f"{line.fault} ({line.late})" for line in lines if line.late and run.is_timed]
    excused = set(run.missing) if run.allow_missing else set()
    not_run = [fault for fault in run.wanted if fault not in ran | excused]
    found = {
        f"lost {totals.lost}": totals.lost,
        f"applied twice {totals.twice}": totals.twice,
        f"effects that took longer than {BOUND_S} s: {', '.join(late)}": late,
        f"{run.stuck}: not everything came back": run.stuck,
        f"not run: {', '.join(not_run)}": not_run,
        f"only {totals.acknowledged} acknowledged": totals.acknowledged < run.least_acknowledged,
        f"{totals.tallies_off:+} in the tallies against their effects": totals.tallies_off,
        f"{totals.effects_without_claim} effects without a claim": totals.effects_without_claim,
        f"{totals.dead} dead deliveries": totals.dead,
        f"{totals.unfinished} deliveries unfinished": totals.unfinished,
        f"{totals.attempts_burned} attempts burned by faults": totals.attempts_burned,
        f"unexpected answers: {'; '.join(sent.unexpected)}": sent.unexpected,
    }
    return [text for text, is_wrong in found.items() if is_wrong]


def _offenders(events: Mapping[str, str], evidence: Evidence) -> list[str]:
    found = islice(events.items(), MOST_OFFENDERS)
    return [_describe(e, why, evidence.deliveries.get(e, ())) for e, why in found]


def _describe(event_id: str, why: str, deliveries: Iterable[Delivery]) -> str:
    rows = "; ".join(map(str, deliveries)) or "no deliveries"
    return f"{event_id}: {why} [{rows}]"


def verdict(totals: Totals) -> str:
    """The whole audit in a few words."""
    return (
        f"lost {totals.lost}, applied twice {totals.twice}, of {totals.acknowledged:,}"
        f" acknowledged events; longest recovery {totals.recovery_s:.1f} s"
    )


def counts(result: Result) -> list[tuple[str, str]]:
    """Return the other figures of the audit, with their labels."""
    sent, totals = result.sent, result.totals
    refusals = {k: n for k, n in sorted(sent.answers.items()) if not k.startswith("200 ")}
    return [
        ("sent", f"{sent.events:,} events, {sent.retries:,} retries"),
        ("sender paused", f"{sent.held_back_s:.1f} s, because too many events waited"),
        ("other answers", ", ".join(f"{k}: {n:,}" for k, n in refusals.items()) or "none"),
        ("never acknowledged", f"{sent.given_up:,}, all of the sender that does not retry"),
        ("duplicates sent", f"{sent.duplicates:,}, answered 200: {sent.duplicates_answered:,}"),
        ("claimed", f"{totals.claimed:,}; the answer got lost for {totals.claimed_only:,} of them"),
        ("through the spool", f"{totals.spooled:,}"),
        (
            "effects",
            f"{totals.effects:,}, without a claim: {totals.effects_without_claim:,},"
            f" by renamed handlers: {totals.renamed:,}",
        ),
        ("order, keys, limits", str(result.flow)),
        *result.calls.counts(),
        ("runs", ", ".join(f"{k}: {n:,}" for k, n in totals.outcomes.items())),
        ("leases taken back", f"{totals.leases_taken_back:,}"),
        ("attempts burned", f"{totals.attempts_burned:,}, time-outs: {totals.handler_timeouts:,}"),
        ("dead", f"{totals.dead:,}"),
        ("process restarts", f"{result.run.processes_restarted:,}"),
    ]


def render_markdown(result: Result) -> str:
    """The audit as a part of a page."""
    run, totals = result.run, result.totals
    rows = [
        f"| {line.fault} | {line.runs} | {line.acknowledged:,} | {line.lost} | {line.twice} |"
        f" {line.recovery_s:.1f} s |"
        for line in result.lines
    ]
    return "\n".join(
        [
            f"`{run.command}`, seed {run.seed}, {run.date}, {run.machine},"
            f" {run.duration_s:.0f} s: **{verdict(totals)}**.",
            "",
            "| fault | runs | acknowledged | lost | applied twice | longest recovery |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
            f"| **all** | {sum(line.runs for line in result.lines)} | {totals.acknowledged:,} |"
            f" {totals.lost} | {totals.twice} | {totals.recovery_s:.1f} s |",
            "",
            f"A recovery may take {BOUND_S} s: {BOUND}.",
            "",
            *(f"- {name}: {text}" for name, text in counts(result)),
            *(f"- not possible on this machine: {k} ({why})" for k, why in run.missing.items()),
            "",
        ]
    )
