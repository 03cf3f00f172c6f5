"""`gateway rehearse` finds planted mistakes, and leaves those alone who made none."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from gateway.base.errors import CommandFailed
from gateway.dev.embedded import Postgres
from gateway.providers.samples import Recorded
from gateway.testing.rehearse import Report, Verdict
from gateway.testing.rehearse.database import Change
from gateway.testing.rehearse.findings import Fault, RehearsalFinding
from gateway.testing.rehearse.services import GivenAnswer
from tests.support.databases import run_sql
from tests.support.ledger import Reader
from tests.support.rehearsals import (
    SHOP,
    Planted,
    Reports,
    check_planted,
    handlers_of,
    other_notes,
    rehearse_shop,
    the_finding,
)

ROOT: Final = Path(__file__).parents[2]

GUIDE_ROUTES: Final = """
schema: [shop/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [shop.guide]
"""


@pytest.fixture(scope="module")
def reports(postgres: Postgres) -> Reports:
    """All that is not in a module of its own (test_rehearse_world.py), once."""
    modules = ("shop.mistakes", "shop.fine", "shop.repositories", "shop.chores")
    return rehearse_shop(postgres.url, SHOP, *handlers_of(SHOP, *modules))


FIRE: Final = "post_and_forget"
"""Nobody learns how its call ended, which is a finding of its own."""

PLANTED: Final = [
    Planted(
        "insert_blindly",
        Fault.ADDED,
        "run twice in a row",
        "payments",
        "await ctx.db.execute(",
    ),
    Planted(
        "insert_by_key",
        Fault.RAISES,
        "run twice in a row",
        "UniqueViolationError",
        'await ctx.db.execute("insert into receipts',
    ),
    Planted("add_up", Fault.CHANGED, "run twice in a row", "accounts", "await ctx.db.execute("),
    Planted("add_points", Fault.CHANGED, "run twice in a row", "loyalty", "await ctx.db.execute("),
    Planted(
        "mail_by_http",
        Fault.CALLED,
        "run twice in a row",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "mail_when_new",
        Fault.CALLED,
        "killed after POST https://mail.example/send (shop/mistakes.py:",
        "POST https://mail.example/send",
        '(await ctx.http.post("https://mail.example/send")).raise_for_status()',
    ),
    Planted(
        "mail_by_smtp",
        Fault.CALLED,
        "run twice in a row",
        "e-mail to jenny@example.com",
        "server.send_message(message)",
    ),
    Planted(
        "mail_by_thread",
        Fault.CALLED,
        "run twice in a row",
        "e-mail to jenny@example.com",
        "await asyncio.to_thread(server.sendmail",
    ),
    Planted(
        "mail_by_resource",
        Fault.CALLED,
        "run twice in a row",
        "ctx.resources.mailer.send(...)",
        'await ctx.resources.mailer.send("jenny@example.com")',
    ),
    Planted(
        "let_the_last_one_win",
        Fault.ORDER,
        "later event first: customer.updated, then an older customer.updated",
        "customers",
        "await ctx.upsert(",
    ),
    Planted(
        "forget_what_was_deleted",
        Fault.ORDER,
        "later event first: customer.deleted, then an older customer.updated",
        "customers",
        "await ctx.upsert(",
    ),
    Planted(
        "look_then_insert",
        Fault.RACE,
        "run twice at the same time, the first waiting after statement 1 (shop/mistakes.py:",
        "seats",
        "await ctx.db.execute(\"insert into seats values ($1, 'nobody')\"",
    ),
    Planted(
        "call_by_itself",
        Fault.ESCAPE,
        "run once",
        "reaches 192.0.2.1:8080 by itself, not through ctx.http",
        "urllib.request.urlopen(",
    ),
    Planted(
        "give_every_run_its_key",
        Fault.CALLED,
        "run twice in a row",
        "POST https://api.example/charges",
        "answer = await ctx.http.post(",
    ),
    Planted(
        "forget_to_await",
        Fault.FORGOTTEN,
        "run once",
        "ctx.upsert(...) is never awaited",
        "ctx.upsert(",
    ),
    Planted(
        "let_the_first_one_win",
        Fault.ORDER,
        "later event first: customer.updated, then an older customer.updated",
        "customers",
        "await ctx.db.execute(",
    ),
    Planted(
        "publish_what_changes",
        Fault.ORDER,
        "later event first: customer.updated, then an older customer.updated",
        "jobs of ctx.publish",
        "await ctx.publish(",
    ),
    Planted(
        "overwrite_what_happened_once",
        Fault.ORDER,
        "later event first: payment_intent.succeeded, then an older",
        "receipts",
        "await ctx.upsert(",
    ),
    Planted(
        "mail_behind_a_row",
        Fault.CALLED,
        "run twice in a row",
        "POST https://mail.example/send",
        '(await ctx.http.post("https://mail.example/send")).raise_for_status()',
    ),
    Planted(
        "post_and_forget",
        Fault.CALLED,
        "run twice in a row",
        "POST https://mail.example/send",
        "task = asyncio.create_task(",
    ),
    Planted(
        "ask_by_post",
        Fault.CALLED,
        "run twice in a row",
        "POST https://api.example/graphql",
        "answer = await ctx.http.post(",
    ),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.handler)
def test_a_planted_mistake_is_found_with_its_line(reports: Reports, planted: Planted) -> None:
    report = reports[f"shop.mistakes.{planted.handler}"]
    check_planted(report, planted, others=[Fault.LOST] if planted.handler == FIRE else [])


def _change(finding: RehearsalFinding) -> Change:
    assert finding.difference is not None
    [change] = finding.difference.changes
    return change


def test_the_differing_rows_are_told(reports: Reports) -> None:
    added = _change(the_finding(reports, "shop.mistakes.insert_blindly"))
    assert added.before is None
    assert added.after is not None
    assert added.after.keys() == {"intent", "amount"}  # the number from a sequence says nothing
    summed = _change(the_finding(reports, "shop.mistakes.add_up"))
    assert summed.before is not None
    assert summed.after is not None
    assert (summed.before["balance"], summed.after["balance"]) == (1, 2)
    assert summed.before["customer"] == summed.after["customer"]


def test_the_statement_is_told_where_the_line_says_little(reports: Reports) -> None:
    finding = the_finding(reports, "shop.mistakes.insert_blindly")
    assert finding.statement == "insert into payments (intent, amount) values ($1, $2)"


def test_every_sending_is_told(reports: Reports) -> None:
    finding = the_finding(reports, "shop.mistakes.mail_by_http")
    assert len(finding.calls) == 2
    assert finding.expected_calls == 1
    assert '"to"' in finding.calls[0].content


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        ("insert_blindly", "ctx.upsert"),
        ("insert_by_key", "ctx.upsert"),
        ("add_up", "write a state"),
        ("mail_by_smtp", "ctx.once"),
        ("let_the_last_one_win", "version="),
        ("forget_what_was_deleted", "marked as deleted"),
        ("look_then_insert", "unique key"),
        ("give_every_run_its_key", "ctx.idempotency_key()"),
        ("let_the_first_one_win", "the first to arrive wins"),
        ("publish_what_changes", "of two jobs with one key the first to arrive wins"),
        ("overwrite_what_happened_once", "the last to arrive wins"),
    ],
)
def test_each_kind_of_mistake_has_its_advice(reports: Reports, handler: str, advice: str) -> None:
    assert advice in the_finding(reports, f"shop.mistakes.{handler}").advice


def test_those_who_made_no_mistake_are_left_alone(reports: Reports) -> None:
    fine = {name: report for name, report in reports.items() if name.startswith("shop.fine.")}
    found = {name: report.findings for name, report in fine.items() if report.findings}
    assert not found
    idle = {name for name, report in fine.items() if report.verdict is Verdict.IDLE}
    assert idle == {"shop.fine.only_look", "shop.fine.thank_for_much"}
    assert {r.verdict for name, r in fine.items() if name not in idle} == {Verdict.SAFE}
    assert len(fine) >= 15


def test_a_handler_that_did_nothing_is_not_called_safe(reports: Reports) -> None:
    report = reports["shop.fine.thank_for_much"]
    assert report.notes == (
        "wrote nothing and sent nothing on charge.dispute.created, payment_intent.succeeded: "
        "nothing was tried there",
    )


def test_sql_of_the_gateway_itself_is_not_told(reports: Reports) -> None:
    assert the_finding(reports, "shop.mistakes.publish_what_changes").statement is None


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        ("stumble", "record an event on which it works"),
        ("lack_a_column", "`alter table receipts add column version timestamptz`"),
        ("lack_an_index", "`create unique index on seats (subscription)`"),
        ("lack_a_variable", "set the environment variable NO_SUCH_ADDRESS"),
        ("pass_a_text_for_a_number", "a value of the type that the column has"),
        ("read_the_answer", "GET https://sms.example/messages/1 has got an answer that is made up"),
    ],
)
def test_each_kind_of_failure_has_its_advice(reports: Reports, handler: str, advice: str) -> None:
    report = reports[f"shop.mistakes.{handler}"]
    assert report.verdict is Verdict.FAILED
    assert advice in (report.advice or "")


def test_the_same_failure_on_several_events_is_told_once(reports: Reports) -> None:
    report = reports["shop.mistakes.read_the_answer"]
    assert (report.reason or "").startswith("fails on customer.created, customer.updated: KeyError")
    assert not report.notes


def test_what_the_world_answers_and_what_only_reads_can_be_said(postgres: Postgres) -> None:
    reports = rehearse_shop(
        postgres.url,
        SHOP,
        "read_the_answer",
        "ask_by_post",
        answers=[
            GivenAnswer(method="GET", url="https://sms.example/*", json={"no": "sid"}),
            GivenAnswer(method="get", url="https://sms.example/*", json={"sid": "SM1"}),
            GivenAnswer(method="POST", url="https://sms.example/*", status=500),
        ],
        reads=["https://api.example/graph*"],
    )
    assert [report.verdict for report in reports.values()] == [Verdict.SAFE, Verdict.SAFE]


def test_a_call_that_may_come_twice_when_a_worker_dies_is_a_note(reports: Reports) -> None:
    [note] = other_notes(reports, "shop.fine.mail_once_without_key")
    assert "may be sent twice if the worker dies during the call" in note
    assert "ctx.idempotency_key('receipt')" in note
    guards = ("mail_once", "mail_at_most_once", "mail_once_per_session", "leave_it_to_the_callee")
    for guarded in guards:
        assert not other_notes(reports, f"shop.fine.{guarded}")


def test_a_repeated_put_is_noted_once_whatever_the_event(reports: Reports) -> None:
    [note] = other_notes(reports, "shop.fine.put_a_state")
    assert "is sent again by a second run: fine where the callee takes PUT" in note


def test_a_handlers_own_decision_is_an_outcome(reports: Reports) -> None:
    assert reports["shop.fine.reject"].notes == (
        "on customer.updated: REJECTED: no such customer of ours",
    )
    assert reports["shop.fine.put_off"].verdict is Verdict.SAFE


def test_what_is_missing_is_made_up(reports: Reports) -> None:
    finding = the_finding(reports, "shop.mistakes.add_points")
    assert finding.event == "payment_intent.succeeded, with a row made up in loyalty"
    waiting = reports["shop.fine.wait_for_the_row"]
    assert waiting.verdict is Verdict.SAFE
    assert waiting.notes == ("on customer.updated: Retry: not there yet",)


def test_a_handler_that_fails_when_run_once_is_told_with_its_error(reports: Reports) -> None:
    report = reports["shop.mistakes.stumble"]
    assert report.verdict is Verdict.FAILED
    place = f"shop/mistakes.py:{_line('no_such_field')}"
    assert report.reason == f"fails on customer.updated: KeyError: 'no_such_field' ({place})"


def _line(text: str) -> int:
    lines = (SHOP / "shop/mistakes.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_handler_without_a_sample_is_not_rehearsed(reports: Reports) -> None:
    report = reports["shop.mistakes.take_what_has_no_sample"]
    assert report.verdict is Verdict.SKIPPED
    assert (report.reason or "").startswith("no sample of type file.created; record one with")


def test_a_queue_is_rehearsed_on_the_jobs_that_others_publish(reports: Reports) -> None:
    report = reports["shop.chores.do_a_chore"]
    assert report.events == ("chores",)
    assert the_finding(reports, "shop.chores.do_a_chore").subject == "payments"


@pytest.mark.parametrize("handler", ["keep_the_newest", "keep_how_it_was_closed"])
def test_github_is_rehearsed_in_pairs_too(reports: Reports, handler: str) -> None:
    finding = the_finding(reports, f"shop.repositories.{handler}")
    assert finding.fault is Fault.ORDER
    assert finding.subject == "customers"


def test_where_no_later_event_is_tried_it_is_said(reports: Reports) -> None:
    [note] = reports["shop.repositories.greet"].notes
    assert note == "order not tried on label.created: no later event of the object is there"


def test_the_handlers_of_this_repository_are_safe(postgres: Postgres) -> None:
    reports = rehearse_shop(postgres.url, ROOT)
    assert len(reports) >= 8
    assert {name: r.findings for name, r in reports.items() if r.verdict is not Verdict.SAFE} == {}
    assert all(report.schedules >= 8 for report in reports.values())


def _rehearse_guide(server_url: str, directory: Path, handler: str, intent: str) -> Report:
    """`intent` is the type of that column."""
    table = f"create table payments (intent {intent}, amount bigint, version timestamptz)"
    (directory / "config").mkdir(parents=True)
    (directory / "shop").mkdir()
    (directory / "config/routes.yaml").write_text(GUIDE_ROUTES, encoding="utf-8")
    (directory / "shop/schema.sql").write_text(table, encoding="utf-8")
    (directory / "shop/guide.py").write_text(handler, encoding="utf-8")
    return rehearse_shop(server_url, directory)["shop.guide.book_payment"]


def test_the_example_of_the_guide_is_found_and_its_correction_is_safe(
    postgres: Postgres, tmp_path: Path
) -> None:
    guide = (ROOT / "docs/rehearse.md").read_text(encoding="utf-8")
    wrong, right = re.findall(r"^```python\n(.*?)^```$", guide, flags=re.MULTILINE | re.DOTALL)
    report = _rehearse_guide(postgres.url, tmp_path / "wrong", wrong, "text")
    assert [f.fault for f in report.findings] == [Fault.ADDED, Fault.CALLED, Fault.LOST]
    for finding in report.findings:
        line = (finding.place or "").rpartition(":")[2]
        assert f"handlers/shop.py:{line}: {finding.source}\n" in guide
        assert finding.advice in guide
    report = _rehearse_guide(postgres.url, tmp_path / "right", right, "text primary key")
    assert report.verdict is Verdict.SAFE
    assert not report.notes


@pytest.fixture
def modest_url(postgres: Postgres) -> Iterator[str]:
    """The server as a role sees it that may create databases, and nothing else."""
    role = "modest_" + uuid4().hex
    asyncio.run(run_sql(postgres.url, f"create role {role} login createdb"))
    yield urlunsplit(urlsplit(postgres.url)._replace(netloc=f"{role}@"))
    asyncio.run(run_sql(postgres.url, f"drop role {role}"))


def test_a_role_that_may_little_is_enough(modest_url: str) -> None:
    names = ("look_then_insert", "keep_a_journal", "read_the_settings")
    reports = rehearse_shop(modest_url, SHOP, *names)
    assert [report.verdict for report in reports.values()] == [
        Verdict.UNSAFE,
        Verdict.SAFE,
        Verdict.SAFE,
    ]


def test_a_handler_that_is_not_there_is_refused_before_anything_is_started() -> None:
    with pytest.raises(CommandFailed, match=r"no handler 'nobody'; expected one of shop\.chores"):
        rehearse_shop("postgresql://nobody@127.0.0.1:1/nothing", SHOP, "nobody")


def test_an_event_that_no_handler_takes_is_refused_before_anything_is_started() -> None:
    recorded = Recorded(provider="github", type="ping", id="1", headers={}, body=b"{}")
    with pytest.raises(CommandFailed, match=r"p\.json: no handler takes ping of github"):
        rehearse_shop(
            "postgresql://nobody@127.0.0.1:1/nothing", SHOP, recorded={"p.json": recorded}
        )


def test_an_event_that_a_named_handler_does_not_take_is_refused() -> None:
    recorded = Recorded(provider="stripe", type="customer.updated", id="1", headers={}, body=b"{}")
    with pytest.raises(
        CommandFailed, match=r"c\.json: customer\.updated of stripe is not taken by"
    ):
        rehearse_shop(
            "postgresql://nobody@127.0.0.1:1/nothing", SHOP, "add_up", recorded={"c.json": recorded}
        )
    with pytest.raises(CommandFailed, match=r"add_up takes payment_intent\.succeeded, and none of"):
        rehearse_shop(
            "postgresql://nobody@127.0.0.1:1/nothing",
            SHOP,
            "add_up",
            "stumble",
            recorded={"c.json": recorded},
        )


async def test_nothing_is_left_behind_on_the_server(reports: Reports, ledger: Reader) -> None:
    names = await ledger.rows("select datname from pg_database where datname like 'gateway_test_%'")
    assert reports
    assert not names
