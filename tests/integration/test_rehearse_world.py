"""`gateway rehearse` with two different events of one subject, and with services that fail."""

from typing import Final

import pytest

from gateway.dev.embedded import Postgres
from gateway.testing.rehearse import Verdict
from gateway.testing.rehearse.findings import Fault
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

TOGETHER: Final = [
    Planted(
        "add_to_what_was_read",
        Fault.OVERLAP,
        "two events of one object at the same time, the first waiting after statement 2 (shop/",
        "credits",
        'await ctx.upsert("credits"',
    ),
    Planted(
        "order_by_another_key",
        Fault.OVERLAP,
        "two objects of one customer at the same time, the first waiting after statement 2 (shop/",
        "credits",
        'await ctx.upsert("credits"',
    ),
    Planted(
        "read_before_the_lock",
        Fault.OVERLAP,
        "two more objects of one customer at the same time, the first waiting after statement 3",
        "credits",
        'await ctx.db.execute("update credits set',
    ),
    Planted(
        "allow_one_grant",
        Fault.OVERLAP,
        "two events of one change at the same time, the first waiting after statement 1 (shop/",
        "grants",
        "granted = await ctx.db.fetchval(",
    ),
    Planted(
        "compare_versions_by_hand",
        Fault.OVERLAP,
        "two events of one object at the same time, the first waiting after statement 1 (shop/",
        "subscriptions",
        "await ctx.upsert(",
    ),
    Planted(
        "mail_while_not_marked",
        Fault.CALLED,
        "two events of one object at the same time, the first waiting after statement 1 (shop/",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "mail_for_both_types",
        Fault.CALLED,
        "two events of one object, one after the other",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "grant_for_both_types",
        Fault.CHANGED,
        "two events of one object, one after the other",
        "credits",
        "await ctx.db.execute(",
    ),
    Planted(
        "remember_in_memory",
        Fault.MEMORY,
        "run once, then once more in a new database",
        "leaves out what it did before",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "charge_twice_under_one_key",
        Fault.SHARED_KEY,
        "run once",
        "two different calls of POST https://pay.example/charges have the same idempotency key",
        "answer = await ctx.http.post(",
    ),
    Planted(
        "charge_by_customer",
        Fault.SHARED_KEY,
        "two objects of one customer, one after the other",
        "two different calls of POST https://pay.example/fees have the same idempotency key",
        "answer = await ctx.http.post(",
    ),
    Planted(
        "publish_by_customer",
        Fault.ORDER,
        "two objects of one customer, one after the other",
        "jobs of ctx.publish",
        "await ctx.publish(",
    ),
    Planted(
        "write_at_the_first_attempt_only",
        Fault.REMOVED,
        "timed out before the commit, run again as its second attempt",
        "receipts",
        "await ctx.upsert(",
    ),
]

OUTAGES: Final = [
    Planted(
        "ignore_the_answer",
        Fault.LOST,
        "POST https://mail.example/send answered 500 (shop/outages.py:",
        "POST https://mail.example/send is lost",
        'answer = await ctx.http.post("https://mail.example/send")',
    ),
    Planted(
        "drop_the_failure",
        Fault.LOST,
        "POST https://mail.example/send answered 500 (shop/outages.py:",
        "POST https://mail.example/send is lost",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "drop_it_around_once",
        Fault.LOST,
        "POST https://mail.example/send answered 401 (shop/outages.py:",
        "POST https://mail.example/send is lost",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "drop_timeouts",
        Fault.LOST,
        "POST https://mail.example/send timed out before it was sent (shop/outages.py:",
        "POST https://mail.example/send is lost",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "mark_it_as_sent_first",
        Fault.LOST,
        "POST https://mail.example/send answered 500 (shop/outages.py:",
        "POST https://mail.example/send is lost",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "retry_by_itself",
        Fault.CALLED,
        "POST https://mail.example/send timed out after it was sent (shop/outages.py:",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "give_every_attempt_its_key",
        Fault.CALLED,
        "timed out before the commit, run again as its second attempt",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "send_at_the_first_attempt_only",
        Fault.LOST,
        "POST https://mail.example/send answered 500 (shop/outages.py:",
        "POST https://mail.example/send is lost",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "store_the_error",
        Fault.LOST,
        "GET https://crm.example/profile answered 500 (shop/outages.py:",
        "subscriptions",
        'answer = await ctx.http.get("https://crm.example/profile")',
    ),
    Planted(
        "leave_when_it_is_down",
        Fault.LOST,
        "GET https://crm.example/profile answered 500 (shop/outages.py:",
        "receipts",
        '(await ctx.http.get("https://crm.example/profile")).raise_for_status()',
    ),
    Planted(
        "drop_a_refund",
        Fault.LOST,
        "POST https://api.stripe.com/v1/refunds answered 500 (shop/outages.py:",
        "POST https://api.stripe.com/v1/refunds is lost",
        "await ctx.stripe.v1.refunds.create_async(",
    ),
    Planted(
        "drop_a_mail",
        Fault.LOST,
        "e-mail to jenny@example.com answered 451 (shop/outages.py:",
        "e-mail to jenny@example.com is lost",
        "server.sendmail(",
    ),
    Planted(
        "drop_what_a_resource_says",
        Fault.LOST,
        "ctx.resources.mailer.send(...) without a connection (shop/outages.py:",
        "ctx.resources.mailer.send(...) is lost",
        "await ctx.resources.mailer.send(",
    ),
    Planted(
        "ignore_the_answer_to_a_client",
        Fault.LOST,
        "ctx.resources.letters.post(...) answered 500 (shop/outages.py:",
        "ctx.resources.letters.post(...) is lost",
        "await ctx.resources.letters.post(",
    ),
    Planted(
        "drop_a_refusal_around_once",
        Fault.LOST,
        "ctx.resources.letters.post(...) answered 401 (shop/outages.py:",
        "ctx.resources.letters.post(...) is lost",
        "answer = await ctx.resources.letters.post(",
    ),
    Planted(
        "take_every_error_for_not_sent",
        Fault.CALLED,
        "POST https://mail.example/send answered 500 after it was done (shop/outages.py:",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send")',
    ),
    Planted(
        "list_timeouts_as_not_done",
        Fault.CALLED,
        "POST https://mail.example/send timed out after it was sent (shop/outages.py:",
        "POST https://mail.example/send",
        'answer = await ctx.http.post("https://mail.example/send"',
    ),
    Planted(
        "use_the_result_of_a_skip",
        Fault.RAISES,
        "killed before POST https://mail.example/send (shop/outages.py:",
        "AttributeError: 'NoneType' object has no attribute 'upper'",
        'await ctx.upsert("receipts"',
    ),
]


@pytest.fixture(scope="module")
def together(postgres: Postgres) -> Reports:
    """Mistakes with two different events, each rehearsed once."""
    return rehearse_shop(postgres.url, SHOP, *handlers_of(SHOP, "shop.together"))


@pytest.fixture(scope="module")
def outages(postgres: Postgres) -> Reports:
    """Mistakes with services that fail, each rehearsed once."""
    return rehearse_shop(postgres.url, SHOP, *handlers_of(SHOP, "shop.outages"))


@pytest.fixture(scope="module")
def sound(postgres: Postgres) -> Reports:
    """What is right, each rehearsed once."""
    return rehearse_shop(postgres.url, SHOP, *handlers_of(SHOP, "shop.sound"))


@pytest.mark.parametrize("planted", TOGETHER, ids=lambda planted: planted.handler)
def test_a_mistake_with_two_events_is_found_with_its_line(
    together: Reports, planted: Planted
) -> None:
    check_planted(together[f"shop.together.{planted.handler}"], planted)


@pytest.mark.parametrize("planted", OUTAGES, ids=lambda planted: planted.handler)
def test_a_mistake_in_a_failing_world_is_found_with_its_line(
    outages: Reports, planted: Planted
) -> None:
    check_planted(outages[f"shop.outages.{planted.handler}"], planted)


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        ("add_to_what_was_read", "let the database add"),
        ("mail_while_not_marked", "both find that it is still to be done"),
        ("mail_for_both_types", 'once_per="data.object.id"'),
        ("grant_for_both_types", 'once_per="data.object.id"'),
        ("remember_in_memory", "gone in the next process"),
        ("charge_by_customer", "a key of its own"),
    ],
)
def test_each_mistake_with_two_events_has_its_advice(
    together: Reports, handler: str, advice: str
) -> None:
    assert advice in the_finding(together, f"shop.together.{handler}").advice


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        ("ignore_the_answer", "raise_for_status()"),
        ("drop_the_failure", "let the exception out"),
        ("retry_by_itself", "leave the retry to the gateway"),
        ("take_every_error_for_not_sent", "may have been done, so it is not known to be not done"),
        ("store_the_error", "raise_for_status()"),
        ("use_the_result_of_a_skip", "returns None after a call whose outcome is unknown"),
    ],
)
def test_each_mistake_in_a_failing_world_has_its_advice(
    outages: Reports, handler: str, advice: str
) -> None:
    assert advice in the_finding(outages, f"shop.outages.{handler}").advice


def test_every_planted_mistake_is_expected(together: Reports, outages: Reports) -> None:
    found = {name.rpartition(".")[2] for name in (*together, *outages)}
    assert found == {planted.handler for planted in (*TOGETHER, *OUTAGES)}


def test_what_is_right_is_left_alone(sound: Reports) -> None:
    assert {name: report.findings for name, report in sound.items() if report.findings} == {}
    assert {report.verdict for report in sound.values()} == {Verdict.SAFE}
    assert len(sound) >= 15


def test_what_a_second_event_of_the_same_change_does_again_is_a_note(sound: Reports) -> None:
    [note] = sound["shop.sound.mail_when_paid"].notes
    assert "does this again: POST https://mail.example/send (shop/sound.py:" in note
    assert 'once_per="data.object.id"' in note
    [note] = sound["shop.sound.let_the_database_add"].notes
    assert "does this again: credits.credits." in note
    assert not sound["shop.sound.mail_once_per_session"].notes


def test_another_object_that_once_per_leaves_out_is_a_note(sound: Reports) -> None:
    assert sound["shop.sound.welcome_once"].notes == (
        'of two objects of one customer the second is skipped (once_per="data.object.customer"): '
        "right if it is to happen once per such value",
    )


def test_another_object_that_a_key_of_once_leaves_out_is_a_note(sound: Reports) -> None:
    assert other_notes(sound, "shop.sound.mail_once_per_customer") == [
        'of two objects of one customer the second does not call: ctx.once("welcome", per=...) has '
        "the same key for both. Right if it is to happen once per such value"
    ]
    assert not other_notes(sound, "shop.sound.mail_once_per_payment")


def test_a_put_of_a_client_is_a_note(sound: Reports) -> None:
    [note] = other_notes(sound, "shop.sound.put_through_a_client")
    assert note.startswith("ctx.resources.letters.put(...) (shop/sound.py:")
    assert note.endswith(
        "is sent again by a second run: fine where the callee takes it as the standard says"
    )


def test_a_failure_that_the_handler_stores_is_a_note(sound: Reports) -> None:
    [note] = other_notes(sound, "shop.sound.note_the_failure")
    assert note.startswith("POST https://mail.example/send answered 500 (shop/sound.py:")
    assert "failures tells of the failure" in note


def test_what_runs_one_at_a_time_is_not_tried_at_once(sound: Reports) -> None:
    free = sound["shop.sound.be_serializable"].schedules
    assert sound["shop.sound.wait_for_the_turn"].schedules < free
    assert sound["shop.sound.run_alone"].schedules < free
