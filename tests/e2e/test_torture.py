"""The short form of `make torture`, and the proof that its audit can fail and its seed repeats."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.torture.audit import BOUND_S, Result, Run, Sent, judge, render_markdown
from tests.torture.callee import Call, Reply
from tests.torture.calls import Caller, Listed, Resolution, audit_calls
from tests.torture.evidence import Delivery, Evidence
from tests.torture.faults import FAULTS
from tests.torture.plan import CONCURRENCY, HANDLERS, SHAPES, draw_event, draw_steps
from tests.torture.record import CALM, Acknowledged, Record, Window

ROOT = Path(__file__).parents[2]
FAULTS_OF_THE_SHORT_FORM = (
    "rename",
    "kill-worker",
    "stop-worker",
    "postgres-kill",
    "kill-spooling",
    "cut-after-commit",
)
LEAST_ACKNOWLEDGED = 2_000
EVENTS_PER_SECOND = 50


@pytest.mark.timeout(300)
def test_six_faults_under_load_lose_nothing_and_apply_nothing_twice(tmp_path: Path) -> None:
    document = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.torture", "--seed", "42", "--json", str(document)]
    command += ["--events", str(LEAST_ACKNOWLEDGED), "--rate", str(EVENTS_PER_SECOND)]
    command += ["--faults", ",".join(FAULTS_OF_THE_SHORT_FORM)]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = Result.from_json(json.loads(document.read_text(encoding="utf-8")))
    assert {line.fault for line in result.lines} == {CALM, *FAULTS_OF_THE_SHORT_FORM}
    assert result.totals.acknowledged >= LEAST_ACKNOWLEDGED
    assert (result.totals.lost, result.totals.twice, result.problems) == (0, 0, [])
    assert min(result.flow.ordered, result.flow.singles, result.flow.most_at_once) > 0
    assert 0 < result.totals.renamed < result.totals.effects
    found = result.calls
    assert min(found.called_again, found.repeated, found.listed_done) > 0
    assert min(found.confirmed, found.retried, found.shared) > 0


def test_the_same_seed_gives_the_same_schedule_and_the_same_events() -> None:
    def draw(seed: int) -> object:
        steps = list(islice(draw_steps(seed, list(SHAPES)), 3))
        return steps, [draw_event(seed, number) for number in range(500)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_every_fault_has_a_function_and_a_place_in_every_round() -> None:
    assert SHAPES.keys() == FAULTS.keys()
    for steps in islice(draw_steps(1, list(SHAPES)), 5):
        assert {step.fault for step in steps} == SHAPES.keys()


def test_no_more_than_two_faults_are_ever_under_way() -> None:
    for steps in islice(draw_steps(1, list(SHAPES)), 20):
        overlaps = [step.overlaps for step in steps]
        assert any(overlaps)
        assert not any(map(all, pairwise(overlaps)))
        assert not overlaps[-1]


def test_the_audit_passes_what_is_whole() -> None:
    result = audit(record(), evidence())
    assert result.problems == []
    assert [(line.fault, line.runs, line.acknowledged) for line in result.lines] == [
        (CALM, 0, 1),
        ("kill-worker", 1, 2),
    ]
    assert result.lines[1].recovery_s == 2.0


def test_the_audit_tells_an_event_that_never_reached_the_ledger() -> None:
    found = evidence()
    del found.claimed["b"]
    result = audit(record(), found)
    assert result.totals.lost == 1
    assert [line.lost for line in result.lines] == [0, 1]
    assert "lost 1" in result.problems
    assert "2 effects without a claim" in result.problems
    assert result.offenders[0].startswith("b: acknowledged, but not in the ledger")


def test_the_audit_tells_an_effect_that_never_came_and_shows_its_delivery() -> None:
    found = evidence()
    del found.effects["c", "count"]
    result = audit(record(), found)
    assert (result.totals.lost, result.totals.twice) == (1, 0)
    assert result.offenders == [
        "c: no effect of count [count done, 1 attempts; tally done, 1 attempts]"
    ]


def test_the_audit_tells_an_effect_that_came_twice() -> None:
    found = evidence()
    found.effects["a", "tally"] += 1
    result = audit(record(), found)
    assert (result.totals.lost, result.totals.twice) == (0, 1)
    assert [line.twice for line in result.lines] == [1, 0]
    assert "applied twice 1" in result.problems
    assert "-1 in the tallies against their effects" in result.problems


def test_the_audit_tells_a_recovery_that_took_too_long() -> None:
    late = record()
    late.seen["b", "tally"] = 12.0 + BOUND_S + 0.1
    result = audit(late, evidence())
    assert result.problems == [f"effects that took longer than {BOUND_S} s: kill-worker (1)"]
    assert result.slowest[0].startswith("b: 10.1 s after kill-worker")


def test_a_handler_that_fails_on_purpose_has_the_time_of_each_run() -> None:
    late = record()
    late.acknowledged["b"].fails["tally"] = 1
    late.seen["b", "tally"] = 12.0 + BOUND_S + 0.1
    assert audit(late, evidence()).problems == []
    late.seen["b", "tally"] = 12.0 + 2 * BOUND_S + 0.1
    assert len(audit(late, evidence()).problems) == 1


def test_a_recovery_is_counted_from_the_end_of_an_overlapping_fault() -> None:
    overlapped = record()
    overlapped.windows[1].overlaps = True
    overlapped.windows.append(
        Window(fault="postgres-away", target="", started_at=13.0, ended_at=20.0)
    )
    overlapped.seen["b", "tally"] = 21.0
    result = audit(overlapped, evidence())
    assert {line.fault: line.recovery_s for line in result.lines}["kill-worker"] == 1.0


def test_the_audit_tells_a_fault_that_did_not_run_unless_it_may_be_missing() -> None:
    wanted = ["kill-worker", "full-disk"]
    missing = {"full-disk": "not permitted"}
    refused = audit(record(), evidence(), wanted=wanted, missing=missing)
    assert refused.problems == ["not run: full-disk"]
    allowed = audit(record(), evidence(), wanted=wanted, missing=missing, allow_missing=True)
    assert allowed.problems == []


def test_a_result_survives_json_and_becomes_a_page() -> None:
    result = audit(record(), evidence())
    again = Result.from_json(json.loads(json.dumps(result.as_json())))
    page = render_markdown(again)
    assert page == render_markdown(result)
    assert "| kill-worker | 1 | 2 | 0 | 0 | 2.0 s |" in page
    assert "**lost 0, applied twice 0, of 3 acknowledged events" in page


def test_the_audit_tells_effects_of_one_key_that_are_out_of_order() -> None:
    """Only those that were sent after the acknowledgement of the other have an order."""
    found = Record(windows=record().windows)
    for event_id, turn, sent_at, at in (
        ("a", "x", 1.0, 2.0),
        ("b", "x", 1.5, 2.5),
        ("c", "x", 3.0, 4.0),
        ("d", "y", 9.0, 9.5),
    ):
        found.acknowledge(
            Acknowledged(event_id=event_id, at=at, fails={}, owed=(), sent_at=sent_at, turn=turn)
        )
    claimed = dict.fromkeys("abcd", "stripe")

    def out_of_order(order: str, spooled: str = "") -> int:
        ledger = replace(whole(), claimed=claimed, ordered=order, spooled_ids=frozenset(spooled))
        return audit(found, ledger).flow.out_of_order

    assert out_of_order("abcd") == out_of_order("dbac") == 0
    assert out_of_order("acb") == 1
    assert out_of_order("acb", spooled="b") == 0
    assert audit(found, replace(whole(), claimed=claimed, ordered="cab")).problems == [
        "1 effects out of order"
    ]


def test_the_audit_tells_keys_with_more_or_less_than_one_effect() -> None:
    found = record()
    for number, event_id in enumerate("de"):
        found.acknowledge(
            Acknowledged(event_id=event_id, at=21 + number, fails={}, owed=(), once=f"key {number}")
        )
    claimed = dict.fromkeys("abcde", "stripe")
    good = replace(evidence(), claimed=claimed, singles={"key 0": 1, "key 1": 1, "other": 1})
    assert audit(found, good).flow.singles_off == 0
    bad = replace(good, singles={"key 0": 2, "other": 1})
    assert "2 keys with more or less than one effect" in audit(found, bad).problems


OK, REFUSED, FAILED, LATE = (Reply.parse(text) for text in ("200 done", "401", "500", "hang done"))


def calls(*replies: Reply, unknown: str = "skip", key: str = "k") -> list[Call]:
    return [Call("a", unknown, key, reply) for reply in replies]


def caller(gone_on: str | None = None, **given: Any) -> Caller:
    options: dict[str, Any] = {"status": "done", "runs": 3, "is_interrupted": False, **given}
    return Caller(event_id="a", gone_on=gone_on, **options)


def listed(error: str | None = "HTTPStatusError 500") -> list[Listed]:
    return [Listed(event_id="a", route="stripe", error=error)]


def problems_of(
    made: list[Call],
    caller: Caller,
    listed: Sequence[Listed] = (),
    *,
    ordered: Sequence[Call] = (),
    hidden: Sequence[str] = (),
    resolution: Resolution = Resolution(retries={"a": 1}, completions={"a": 2}),  # noqa: B008
) -> list[str]:
    """What the audit says of one event, by kind of problem."""
    if listed and not ordered and not resolution.confirmed:
        ordered = [Call("a", "skip", "k", OK)]
    if not listed:
        resolution = Resolution()
    found = Record(windows=record().windows, calls=made, ordered_calls=list(ordered))
    problems = audit_calls(found, [caller], listed, hidden, resolution).problems
    return [problem.removeprefix("effects ").partition(": ")[0] for problem in problems]


@pytest.mark.parametrize(
    ("made", "gone_on", "listing"),
    [
        (calls(OK), None, []),
        (calls(REFUSED, REFUSED, OK), None, []),
        (calls(FAILED, OK, unknown="retry"), None, []),
        (calls(FAILED), "skipped", listed()),
        (calls(LATE), "skipped", listed("ReadTimeout")),
        (calls(REFUSED, FAILED), "HTTPStatusError 500", listed()),
        (calls(REFUSED), "HTTPStatusError 401", []),
        (calls(), "ConnectTimeout", []),
        (
            calls(FAILED, REFUSED, unknown="retry"),
            "HTTPStatusError 401",
            listed("HTTPStatusError 401"),
        ),
    ],
)
def test_the_audit_passes_outside_calls_that_are_done_refused_or_listed(
    made: list[Call], gone_on: str | None, listing: list[Listed]
) -> None:
    assert problems_of(made, caller(gone_on), listing) == []


def test_a_run_that_was_broken_off_explains_an_effect_that_the_callee_never_saw() -> None:
    interrupted = caller("skipped", is_interrupted=True)
    assert problems_of([], interrupted, listed(None)) == []
    assert problems_of([], caller("skipped"), listed(None)) == [
        "listed for no reason that the callee knows of"
    ]


@pytest.mark.parametrize(
    ("made", "found", "listing", "problem"),
    [
        (calls(FAILED), caller(), [], "lost"),
        (calls(REFUSED), caller(), [], "lost"),
        ([], caller(), [], "lost"),
        (calls(FAILED), caller("skipped"), [], "lost"),
        (calls(FAILED), caller("HTTPStatusError 500"), [], "lost"),
        (
            calls(FAILED, REFUSED, unknown="retry"),
            caller("HTTPStatusError 401"),
            [],
            "lost",
        ),
        (calls(FAILED, OK), caller(), [], 'called again with unknown="skip"'),
        (calls(OK, OK), caller(), [], 'called again with unknown="skip"'),
        (
            [*calls(FAILED, unknown="retry"), *calls(OK, unknown="retry", key="other")],
            caller(),
            [],
            "called under a second key",
        ),
        (
            calls(FAILED, OK, unknown="retry"),
            caller(runs=1),
            [],
            "called more often than it was run",
        ),
        (calls(OK), caller(), listed(), "listed although its handler has the outcome"),
        (
            calls(REFUSED),
            caller("HTTPStatusError 401"),
            listed("HTTPStatusError 401"),
            "listed although every call was refused",
        ),
        (
            calls(FAILED),
            caller("skipped"),
            listed("HTTPStatusError 503"),
            "listed for no reason that the callee knows of",
        ),
        (
            calls(REFUSED),
            caller("skipped"),
            listed("HTTPStatusError 401"),
            "listed for an answer that means that nothing was done",
        ),
        (
            calls(FAILED),
            caller("skipped", status="pending"),
            listed(),
            "listed, but not completed",
        ),
    ],
)
def test_the_audit_tells_outside_calls_that_are_lost_repeated_or_listed_wrongly(
    made: list[Call], found: Caller, listing: list[Listed], problem: str
) -> None:
    assert problem in problems_of(made, found, listing)


def test_an_effect_that_a_stopped_worker_finished_after_all_need_not_be_listed() -> None:
    assert problems_of(calls(OK), caller("skipped", is_interrupted=True)) == []
    assert problems_of(calls(LATE), caller("skipped")) == ["lost"]


def test_events_about_the_same_have_one_call_and_are_listed_once() -> None:
    """As those of one `per` have."""
    callers = [replace(caller(), event_id=event_id, subject="a") for event_id in "xy"]
    gone_on = [replace(one, gone_on="skipped") for one in callers]
    effect = Listed(event_id="y", route="stripe", error="HTTPStatusError 500")
    confirmed = Resolution(confirmed=frozenset("y"))

    def problems(made: list[Call], of: list[Caller], *listed: Listed) -> int:
        found = Record(windows=record().windows, calls=made)
        return len(audit_calls(found, of, listed, (), confirmed).problems)

    assert problems(calls(OK), callers) == 0
    assert problems(calls(REFUSED, OK), callers) == 0
    assert problems(calls(OK, OK), callers) == 1
    assert problems([], callers) == 1
    assert problems(calls(FAILED), gone_on, effect) == 0
    assert problems(calls(FAILED), gone_on) == 1
    assert problems(calls(FAILED), gone_on, effect, replace(effect, event_id="x")) == 1


def test_the_audit_tells_an_effect_that_is_hidden() -> None:
    assert problems_of(calls(OK), caller(), hidden=["a"]) == [
        "completed with an effect that is neither done nor listed"
    ]


@pytest.mark.parametrize(
    ("ordered", "resolution", "problem"),
    [
        ([], Resolution(confirmed=frozenset("a")), None),
        (
            calls(OK),
            Resolution(confirmed=frozenset("a")),
            "called although it was confirmed",
        ),
        (calls(OK), Resolution(retries={"a": 1}, completions={"a": 2}), None),
        (calls(OK, OK), Resolution(retries={"a": 2}, completions={"a": 3}), None),
        (calls(OK), Resolution(), "listed, and neither confirmed nor retried"),
        (
            calls(OK, OK),
            Resolution(retries={"a": 1}, completions={"a": 2}),
            "called more often than a retry was ordered",
        ),
        (
            calls(OK, key="other"),
            Resolution(retries={"a": 1}, completions={"a": 2}),
            "retried under a second key",
        ),
        (
            calls(OK),
            Resolution(retries={"a": 1}, completions={"a": 3}),
            "completed more or less often than it was ordered",
        ),
        (
            calls(OK),
            Resolution(retries={"a": 1}, completions={"a": 2}, listed_after=["a"]),
            "still listed after it was resolved",
        ),
        (
            calls(OK),
            Resolution(retries={"a": 1}, completions={"a": 2}, problem="exit 1"),
            "not resolved",
        ),
    ],
)
def test_the_audit_tells_effects_that_a_person_resolved_and_that_did_not_end_done_once(
    ordered: list[Call], resolution: Resolution, problem: str | None
) -> None:
    found = problems_of(
        calls(FAILED), caller("skipped"), listed(), ordered=ordered, resolution=resolution
    )
    assert found == ([] if problem is None else [problem])


def test_the_audit_tells_a_retry_after_which_nobody_was_called() -> None:
    found = Record(windows=record().windows, calls=calls(FAILED))
    resolution = Resolution(retries={"a": 1}, completions={"a": 2})
    [problem] = audit_calls(found, [caller("skipped")], listed(), (), resolution).problems
    assert "a retry was ordered, and nobody was called" in problem


def test_what_was_done_twice_by_the_order_of_a_person_is_counted() -> None:
    found = Record(windows=record().windows, calls=calls(LATE), ordered_calls=calls(OK))
    resolution = Resolution(retries={"a": 1}, completions={"a": 2})
    audited = audit_calls(found, [caller("skipped")], listed("ReadTimeout"), (), resolution)
    assert (audited.problems, audited.listed_done, audited.done_twice) == ([], 1, 1)


def test_the_audit_tells_jobs_that_are_not_what_was_published() -> None:
    found = evidence()
    found.effects["a", "published"] = found.effects["a", "job"] = 1
    assert audit(record(), found).problems == []
    found.effects["b", "published"] = 1
    found.effects["c", "job"] = 1
    assert audit(record(), found).problems == ["2 jobs too many or too few"]


def test_the_audit_tells_too_many_at_once_and_too_many_in_a_period() -> None:
    starts = [20.0, 20.2, 20.5, 20.7]
    fits = replace(evidence(), most_at_once=CONCURRENCY, starts={"stripe": starts})
    assert audit(record(), fits).problems == []
    above = replace(
        evidence(), most_at_once=CONCURRENCY + 1, starts={"stripe": [*starts, 20.8, 22.0]}
    )
    assert audit(record(), above).problems == [
        "3 at once of a handler that may be 2",
        "3 starts in half a second of a handler that may 2",
    ]


def test_starts_by_a_clock_that_was_wrong_are_not_counted() -> None:
    found = record()
    jump = Window(fault="clock-jump", target="postgres +10m", started_at=50, ended_at=53)
    found.windows.append(jump)
    by_wrong_clock = replace(evidence(), starts={"stripe": [651.0 + n / 10 for n in range(9)]})
    assert audit(found, by_wrong_clock).problems == []


def whole() -> Evidence:
    """Of no event."""
    return Evidence(claimed={}, effects=Counter(), stats=0, deliveries={})


def record() -> Record:
    """Three events: one before the fault, two after its beginning."""
    found = Record()
    found.windows = [
        Window(fault=CALM, target="", started_at=0.0, ended_at=0.0),
        Window(fault="kill-worker", target="worker-1", started_at=10.0, ended_at=12.0),
    ]
    for event_id, acknowledged_at, seen_at in (("a", 5.0, 5.5), ("b", 11.0, 14.0), ("c", 20, 21)):
        fails = dict.fromkeys(HANDLERS, 0)
        found.acknowledge(Acknowledged(event_id=event_id, at=acknowledged_at, fails=fails))
        for handler in HANDLERS:
            found.see(event_id, handler, seen_at)
    return found


def evidence() -> Evidence:
    """What the ledger says when all is well with these three."""
    return Evidence(
        claimed=dict.fromkeys("abc", "stripe"),
        effects=Counter({(event_id, handler): 1 for event_id in "abc" for handler in HANDLERS}),
        stats=3,
        deliveries={
            event_id: [done(event_id, handler) for handler in HANDLERS] for event_id in "abc"
        },
    )


def done(event_id: str, handler: str) -> Delivery:
    return Delivery(
        event_id=event_id,
        handler=handler,
        status="done",
        attempts=1,
        error=None,
        due_in_s=0,
    )


def audit(
    record: Record,
    evidence: Evidence,
    *,
    wanted: list[str] | None = None,
    missing: dict[str, str] | None = None,
    allow_missing: bool = False,
) -> Result:
    run = Run(
        seed=1,
        command="python -m tests.torture --seed 1",
        date="2026-11-16",
        machine="2 cores",
        duration_s=30.0,
        wanted=wanted or ["kill-worker"],
        missing=missing or {},
        allow_missing=allow_missing,
    )
    sent = Sent(
        events=3,
        held_back_s=0.0,
        retries=0,
        given_up=0,
        duplicates=0,
        duplicates_answered=0,
        answers={"200 accepted": 3},
        unexpected=[],
    )
    return judge(run, sent, record, evidence)
