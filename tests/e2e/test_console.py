"""The console in a real Chromium, over a real `serve` and worker."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.browser import Watched, check_accessible, open_browser
from tests.support.console import ADMIN, READER, TOKENS, Ledger, log_in, send, wait_for
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S

PAGES = (
    "",
    "events",
    "dead",
    "effects",
    "bulk",
    "rejected",
    "handlers",
    "routes",
    "reconcile",
    "system",
)
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>\u202egnp.exe\u2066'


@pytest.fixture(scope="module")
def console(module_project: Project) -> Iterator[Serving]:
    """A `serve` with both tokens, and a worker beside it."""
    with module_project.serve(**TOKENS) as serving, module_project.process("worker"):
        wait_for(serving.ready())
        yield serving


@pytest.fixture(scope="module")
def browser(console: Serving) -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def ledger(module_project: Project) -> Ledger:
    return Ledger(module_project.environ["GATEWAY_DATABASE_URL"])


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context()
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext, console: Serving) -> Page:
    """Logged in with the admin token."""
    opened = context.new_page()
    log_in(opened, console.url)
    return opened


def test_a_stranger_gets_the_login_and_nothing_else(console: Serving) -> None:
    with httpx.Client(base_url=console.url, timeout=PATIENCE_S) as stranger:
        for path in (*PAGES, "event?id=evt_1", "bulk/1", "nowhere"):
            answer = stranger.get(f"/console/{path}")
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/console/login")
            assert answer.text == ""
        for path in ("deliveries/1/replay", "dead/all", "handlers/pause", "bulk/1/stop"):
            headers = {"sec-fetch-site": "same-origin"}
            answer = stranger.post(f"/console/{path}", headers=headers)
            assert answer.status_code == 303, path
            assert answer.headers["location"] == "/console/login?next=%2Fconsole%2F"


def test_a_wrong_token_is_refused_and_then_slowed_down(page: Page, console: Serving) -> None:
    fresh = page.context.browser
    assert fresh is not None
    stranger = fresh.new_context().new_page()
    log_in(stranger, console.url, "not-the-token-at-all-no")
    expect(stranger.get_by_role("alert")).to_have_text("This is not the token.")
    for _ in range(8):  # a slow machine may be past the first waits
        log_in(stranger, console.url, "not-the-token-at-all-no")
        if "Too many" in stranger.get_by_role("alert").inner_text():
            break
    expect(stranger.get_by_role("alert")).to_contain_text("Too many wrong tokens: wait")
    stranger.goto(f"{console.url}/console/")
    expect(stranger).to_have_url(re.compile("/console/login"))
    while stranger.url.startswith(f"{console.url}/console/login"):  # until it has waited enough
        stranger.wait_for_timeout(200)
        log_in(stranger, console.url)
    expect(stranger.get_by_role("heading", name="Overview")).to_be_visible()


def test_after_the_login_one_is_where_one_wanted_to_be(
    context: BrowserContext, console: Serving
) -> None:
    page = context.new_page()
    page.goto(f"{console.url}/console/events?type=invoice.*")
    page.get_by_label("Token").fill(ADMIN)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{console.url}/console/events?type=invoice.*")
    page.get_by_role("button", name="Log out").click()
    page.goto(f"{console.url}/console/events")
    expect(page).to_have_url(re.compile("/console/login"))


def test_the_session_is_out_of_reach_of_scripts_and_other_sites(
    page: Page, console: Serving
) -> None:
    [cookie] = [c for c in page.context.cookies() if c["name"] == "gateway_session"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert cookie["path"] == "/console"
    assert ADMIN not in cookie["value"]


def test_an_action_from_another_site_is_refused(page: Page, console: Serving) -> None:
    cookies = {c["name"]: c["value"] for c in page.context.cookies()}
    with httpx.Client(base_url=console.url, cookies=cookies, timeout=PATIENCE_S) as client:
        for headers in (
            {},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "none"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
        ):
            answer = client.post("/console/handlers/pause", headers=headers, data={"route": "x"})
            assert answer.status_code == 403, headers


def test_a_session_that_was_tampered_with_is_none(page: Page, console: Serving) -> None:
    [session] = [c["value"] for c in page.context.cookies() if c["name"] == "gateway_session"]
    body, _, signature = session.partition(".")
    for forged in (
        f"{body}.{'0' * 64}",
        f"{body[:-4]}AAAA.{signature}",
        f".{signature}",
        body,
        "é",
        "." * 5000,
    ):
        cookie = f"gateway_session={forged}".encode()
        answer = httpx.get(
            f"{console.url}/console/", headers={b"cookie": cookie}, timeout=PATIENCE_S
        )
        assert answer.status_code == 303, forged


def test_a_reader_sees_everything_and_changes_nothing(
    context: BrowserContext, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(1, "evt_reader_", error="Boom: reader")
    page = context.new_page()
    log_in(page, console.url, READER)
    expect(page.get_by_text("read only")).to_be_visible()
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_reader_1")
    expect(page.get_by_role("heading", name="handlers.count")).to_be_visible()
    expect(page.get_by_text("Replay or discard")).to_have_count(0)
    id = ledger.value("select id from gateway.deliveries where event_id = 'evt_reader_1'")
    cookies = {c["name"]: c["value"] for c in page.context.cookies()}
    own = {"sec-fetch-site": "same-origin"}
    path = f"{console.url}/console/deliveries/{id}/replay"
    answer = httpx.post(path, cookies=cookies, headers=own, timeout=PATIENCE_S)
    assert answer.status_code == 303
    status = ledger.value("select status from gateway.deliveries where id = $1", id)
    assert status == "dead"


def test_an_event_shows_how_it_was_verified_and_what_was_done(page: Page, console: Serving) -> None:
    send(console, "evt_shown")
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_shown")
    expect(page.get_by_text("env:STRIPE_WEBHOOK_SECRET")).to_be_visible()
    expect(page.locator(".delivery .chip")).to_have_text("done")
    expect(page.locator(".tree")).to_contain_text('"evt_shown"')
    page.get_by_label("Event, delivery or object id").fill("evt_shown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/console/event\?route=stripe&id=evt_shown"))


def test_a_dead_letter_is_replayed_with_a_reason_and_the_name_of_who_did_it(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(1, "evt_again_", error="Boom: again", handler="handlers.effects.count")
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_again_1")
    page.get_by_label("Reason").fill("the bank is back")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("runs again")
    expect(page.locator(".delivery header .chip")).to_have_text("done")
    expect(page.locator(".timeline .audit")).to_contain_text(
        "replay by Ada (console): the bank is back"
    )


def test_a_thousand_dead_letters_are_replayed_at_once_and_the_bar_survives_a_reload(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(1000, "evt_bulk_", error="Boom: bulk", handler="handlers.effects.count")
    page.goto(f"{console.url}/console/dead?error=Boom: bulk")
    page.get_by_role("link", name="Replay all that match…").click()
    expect(page.get_by_role("heading", name="Replay 1,000 dead letters?")).to_be_visible()
    page.get_by_label("At most so many a second").fill("400")
    page.get_by_role("button", name="Replay 1,000").click()
    expect(page).to_have_url(re.compile(r"/console/bulk/\d+"))
    expect(page.locator("progress")).to_be_visible()
    page.reload()
    expect(page.locator("progress")).to_be_visible()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    expect(page.locator("main")).to_contain_text("1,000 of 1,000")
    left = ledger.value(
        "select count(*) from gateway.deliveries where event_id like 'evt\\_bulk\\_%'"
        " and status = 'dead'"
    )
    assert left == 0


def test_a_bulk_operation_is_stopped_and_resumed(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(500, "evt_stop_", error="Boom: stop")
    page.goto(f"{console.url}/console/dead/all?action=discard&error=Boom: stop")
    page.get_by_label("At most so many a second").fill("20")
    page.get_by_role("button", name="Discard 500").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("stopped", exact=True)).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("running", exact=True)).to_be_visible()
    page.get_by_role("button", name="Stop").click()


def test_ticked_rows_are_discarded_and_the_others_are_not(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(3, "evt_tick_", error="Boom: ticked")
    page.goto(f"{console.url}/console/dead?error=Boom: ticked")
    boxes = page.locator("input[name=delivery]")
    boxes.nth(0).check()
    boxes.nth(2).check()
    page.get_by_role("button", name="Discard ticked").click()
    expect(page.get_by_role("status")).to_contain_text("2 of 2 discarded.")
    expect(page.locator("tr[data-row]")).to_have_count(1)


def test_an_effect_of_unknown_outcome_is_shown_and_resolved_by_forms(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    handler = "handlers.effects.count"
    ledger.add_unknown_effects(3, "evt_unknown_", handler=handler)
    page.goto(f"{console.url}/console/")
    page.locator(".attention li", has_text="3 effects").get_by_role("link").first.click()
    expect(page).to_have_url(f"{console.url}/console/effects")
    expect(page.locator("tr", has_text="HTTPStatusError 500").first).to_contain_text("3")
    page.goto(f"{console.url}/console/handlers")
    shown = page.locator(".handler", has_text=f"{handler} on stripe")
    expect(shown.locator(".tile", has_text="unknown effects").locator("b")).to_have_text("3")

    page.goto(f"{console.url}/console/event?route=stripe&id=evt_unknown_1")
    expect(page.locator(".chip.unknown")).to_have_text("effect unknown")
    page.locator("li.effect").get_by_label("Reason").fill("in their log")
    page.get_by_role("button", name="Confirm receipt as done").click()
    expect(page.locator(".notice").first).to_have_text("receipt: confirmed as done.")
    expect(page.locator("li.audit")).to_contain_text(
        "confirm effect receipt by Ada (console): in their log"
    )

    page.goto(f"{console.url}/console/effects")
    page.locator("tr", has_text="evt_unknown_2").get_by_role("checkbox").check()
    page.get_by_role("button", name="Retry ticked").click()
    expect(page.locator(".notice").first).to_have_text("1 of 1 to be made again.")
    page.get_by_role("link", name="Retry all 1 that match").click()
    expect(page.get_by_role("heading", name="Retry 1 unknown effect?")).to_be_visible()
    page.get_by_role("button", name="Retry 1").click()
    expect(page.get_by_role("heading", name="Retry effects 1")).to_be_visible()
    expect(page.locator(".chip", has_text="done")).to_be_visible()
    resolved = ledger.value(
        "select array_agg(action || ' by ' || actor order by id) from gateway.audit"
        " where effect = 'receipt' and event_id like 'evt_unknown_%'"
    )
    assert resolved == [
        f"{action} effect by Ada (console)" for action in ("confirm", "retry", "retry")
    ]


def test_a_handler_is_paused_with_a_reason_and_resumed(page: Page, console: Serving) -> None:
    page.goto(f"{console.url}/console/handlers")
    handler = page.locator("article.handler", has_text="handlers.effects.slow").filter(
        has_text="on stripe"
    )
    handler.get_by_text("Pause", exact=True).first.click()
    handler.get_by_label("Reason").fill("the bank is down")
    handler.get_by_role("button", name="Pause").click()
    expect(handler).to_contain_text("Paused by Ada (console)")
    expect(handler).to_contain_text("the bank is down")
    handler.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("runs again")
    expect(handler).not_to_contain_text("Paused by")


def test_a_refused_request_says_why_and_is_let_in_once_it_is_right(
    page: Page, console: Serving
) -> None:
    body, headers = stripe_request("evt_refused", secret="whsec_another_one")
    assert wait_for(console.post(body, headers)).status_code == 403
    page.goto(f"{console.url}/console/rejected?route=stripe")
    row = page.locator("tr[data-row]").first
    expect(row).to_contain_text("BAD_SIGNATURE")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Headers")).to_be_visible()
    page.get_by_role("link", name="Show it").click()
    expect(page.locator("pre")).to_contain_text("evt_refused")
    page.get_by_role("button", name="Verify again, and let it in").click()
    expect(page.get_by_role("status")).to_contain_text("1 still refused")


def test_a_hostile_payload_is_shown_as_text(page: Page, console: Serving, ledger: Ledger) -> None:
    watched = Watched(page, console.url)
    send(console, "evt_hostile", extra=HOSTILE)
    ledger.value(
        "insert into gateway.deliveries (route, event_id, handler, status, finished_at, error)"
        " values ('stripe', 'evt_hostile', 'handlers.gone', 'dead', now(), $1) returning id",
        f"ValueError: {HOSTILE}",
    )
    for path in ("event?route=stripe&id=evt_hostile", "dead", "events", "", "handlers"):
        page.goto(f"{console.url}/console/{path}")
        assert "owned" not in page.title()
        assert page.locator("main script, main img").count() == 0
        shown = page.locator("main").inner_text()
        assert "\u202e" not in shown
        assert "\u2066" not in shown
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_hostile")
    expect(page.locator(".tree")).to_contain_text('<script>document.title=\\"owned\\"</script>')
    expect(page.locator(".tree")).to_contain_text("\\u202egnp.exe")
    assert watched.complaints == []
    assert watched.foreign == []


def test_everything_works_without_a_script(
    browser: Browser, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(2, "evt_plain_", error="Boom: plain")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    log_in(page, console.url)
    page.goto(f"{console.url}/console/dead?error=Boom: plain")
    page.get_by_role("link", name="evt_plain_1").click()
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("status")).to_contain_text("is discarded")
    page.goto(f"{console.url}/console/dead/all?action=discard&error=Boom: plain")
    page.get_by_role("button", name="Discard 1").click()
    page.goto(page.url)
    expect(page.locator("progress")).to_be_visible()
    context.close()


def test_the_keys_find_open_tick_and_help(page: Page, console: Serving, ledger: Ledger) -> None:
    send(console, "evt_keys")
    page.goto(f"{console.url}/console/events")
    page.keyboard.press("/")
    expect(page.get_by_label("Event, delivery or object id")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/console/event\?"))
    page.keyboard.press("r")
    expect(page.get_by_label("Reason").first).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page).to_have_url(f"{console.url}/console/dead")


def test_what_needs_attention_leads_to_where_it_is_put_right(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(1, "evt_attention_", error="Boom: attention")
    page.goto(f"{console.url}/console/")
    page.locator(".attention li", has_text="dead letter").get_by_role("link").first.click()
    expect(page).to_have_url(f"{console.url}/console/dead")


def test_a_dead_letter_is_replayed_by_keys_alone(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.add_dead(2, "evt_typed_", error="Boom: typed", handler="handlers.effects.count")
    page.goto(f"{console.url}/console/dead?error=Boom: typed")
    page.keyboard.press("j")
    ledger.add_dead(1, "evt_typed_later_", error="Boom: typed", handler="handlers.effects.count")
    expect(page.locator("tr[data-row]")).to_have_count(3)
    expect(page.locator("tr.here")).to_contain_text("evt_typed_2")  # not whatever is first by now
    page.keyboard.press("r")
    page.keyboard.type("by keys")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("1 of 1 run again.")
    replayed = "select event_id from gateway.audit where reason = 'by keys'"
    assert ledger.value(replayed) == "evt_typed_2"


def test_a_list_is_live_and_waits_while_rows_are_ticked(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    page.goto(f"{console.url}/console/events")
    send(console, "evt_live")
    expect(page.get_by_role("link", name="evt_live")).to_be_visible()
    ledger.add_dead(2, "evt_waits_", error="Boom: waits")
    page.goto(f"{console.url}/console/dead?error=Boom: waits")
    page.get_by_label("Tick all on this page").check()
    expect(page.get_by_role("button", name="Replay ticked (2)")).to_be_visible()
    ledger.add_dead(1, "evt_waits_later_", error="Boom: waits")
    expect(page.locator("[data-updated]")).to_have_text("not updated while rows are ticked")
    expect(page.locator("tr[data-row] input:checked")).to_have_count(2)
    page.locator("tr[data-row] input").first.uncheck()
    expect(page.get_by_role("button", name="Discard ticked (1)")).to_be_visible()
    page.locator("tr[data-row] input").nth(1).uncheck()
    expect(page.locator("tr[data-row]")).to_have_count(3)


def test_what_is_typed_into_a_live_page_stays(page: Page, console: Serving) -> None:
    page.goto(f"{console.url}/console/handlers")
    handler = page.locator("article.handler").first
    handler.get_by_text("Pause", exact=True).first.click()
    handler.get_by_label("Reason").fill("while I look up the incident")
    page.get_by_role("heading", name="Handlers", exact=True).click()
    send(console, "evt_typed_away")
    expect(page.locator("[data-updated]")).to_have_text("not updated while a form is filled in")
    expect(handler.get_by_label("Reason")).to_have_value("while I look up the incident")


def test_on_a_phone_no_figure_is_without_its_name(page: Page, console: Serving) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{console.url}/console/system")
    figures = page.locator(".rows td.n")
    shown = figures.evaluate_all("all => all.map(td => getComputedStyle(td, '::before').content)")
    assert shown
    assert "none" not in shown


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_every_page_is_accessible_and_fits(
    browser: Browser, console: Serving, ledger: Ledger, scheme: str, width: int
) -> None:
    send(console, f"evt_look_{scheme}_{width}")
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    watched = Watched(page, console.url)
    page.goto(f"{console.url}/console/login")
    check_accessible(page)
    log_in(page, console.url)
    event = f"event?route=stripe&id=evt_look_{scheme}_{width}"
    for path in (
        *PAGES,
        event,
        "dead/all?action=replay",
        "effects/all?action=retry",
        "system/doctor",
    ):
        page.goto(f"{console.url}/console/{path}")
        check_accessible(page)
        overflow = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, path
    assert watched.foreign == []
    assert watched.complaints == []
    context.close()


TRACEBACK = """Traceback (most recent call last):
  File "handlers.py", line 7, in count
    raise Boom("one")
handlers.Boom: one"""


def add_failed(console: Serving, ledger: Ledger, event_id: str) -> int:
    """An event with a delivery that has died, and what it died of."""
    send(console, event_id)
    id: int = ledger.value(
        "insert into gateway.deliveries"
        " (route, event_id, handler, status, finished_at, attempts, runs, error)"
        " values ('stripe', $1, 'handlers.gone', 'dead', now(), 1, 1, 'Boom: one') returning id",
        event_id,
    )
    ledger.run(
        "insert into gateway.attempts"
        " (delivery_id, number, started_at, finished_at, outcome, error)"
        " values ($1, 1, now(), now(), 'dead', $2)",
        id,
        TRACEBACK,
    )
    return id


def test_a_call_of_a_dead_letter_is_confirmed_by_its_form(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    ledger.run(
        "insert into gateway.effects (delivery_id, name, token, error)"
        " values ($1, 'charge', gen_random_uuid(), 'HTTPStatusError 500')",
        add_failed(console, ledger, "evt_charged"),
    )
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_charged")
    failed = page.locator(".delivery.dead")
    call = failed.locator("li.effect")
    expect(call).to_contain_text("once charge: outcome unknown (HTTPStatusError 500), 1 call")
    expect(failed.locator(".chip.unknown")).to_have_text("effect unknown")
    expect(failed.get_by_label("1 effect of unknown outcome")).to_be_visible()
    expect(call.get_by_role("button")).to_have_text(["Confirm charge as done"])  # no retry
    check_accessible(page)
    call.get_by_label("Reason").fill("in their log")
    call.get_by_role("button").click()
    expect(page.locator(".notice").first).to_have_text("charge: confirmed as done.")
    expect(failed.locator("li.effect")).to_contain_text("once charge: done")
    expect(failed.get_by_text("1 effect done before: not made again.")).to_be_visible()
    expect(failed.get_by_role("button", name="Confirm")).to_have_count(0)
    expect(failed.locator("li.audit")).to_contain_text(
        "confirm effect charge by Ada (console): in their log"
    )


def test_a_failed_event_is_found_by_its_object_and_shows_why_it_failed(
    page: Page, console: Serving, ledger: Ledger
) -> None:
    add_failed(console, ledger, "evt_of_object")
    page.get_by_label("Event, delivery or object id").fill("in_evt_of_object")
    page.keyboard.press("Enter")
    row = page.locator("tr[data-row]")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("dead")
    row.get_by_role("link", name="evt_of_object", exact=True).click()
    failed = page.locator(".delivery.dead")
    expect(failed.locator("pre.error")).to_have_text("Boom: one")
    failed.locator(".timeline summary").click()
    expect(failed.locator(".timeline pre")).to_contain_text("line 7, in count")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_the_page_of_each_thing_is_accessible_and_fits(
    browser: Browser, console: Serving, ledger: Ledger, scheme: str, width: int
) -> None:
    event_id = f"evt_thing_{scheme}_{width}"
    add_failed(console, ledger, event_id)
    bulk = ledger.value(
        "insert into gateway.bulk_orders"
        " (action, filter, actor, reason, began_at, total, moved, mark_at, stepped_at)"
        " values ('replay', '{\"error\": \"Boom\"}', 'Ada', 'why', now(), 5, 2, now(),"
        " now() - interval '1 h') returning id"
    )
    refused = ledger.value(
        "insert into gateway.rejected (route, at, code, cause, detail, method, path, address,"
        " sender, headers, body, body_bytes, size)"
        " values ('stripe', now(), 'BAD_SIGNATURE', 'wrong_secret', 'no secret fits', 'POST',"
        " '/webhooks/stripe', '192.0.2.1', 'Stripe/1.0', '{\"a\": \"b\"}', '{}', 2, 2) returning id"
    )
    run = ledger.value(
        "insert into gateway.reconciliations"
        " (route, actor, since, until, dry_run, status, error, finished_at)"
        " values ('stripe', 'Ada', now(), now(), false, 'failed', 'no answer', now()) returning id"
    )
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    log_in(page, console.url)
    for path in (
        *(f"event?route=stripe&id={event_id}", "dead", f"events?object=in_{event_id}"),
        *(f"bulk/{bulk}", "bulk", f"rejected/{refused}?body=1", "rejected"),
        *(f"reconcile/{run}", "reconcile", "events?q=nothing", "nowhere", "handlers"),
    ):
        page.goto(f"{console.url}/console/{path}")
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        check_accessible(page)
        overflow = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, path
    context.close()


def test_times_are_the_viewers_own_with_utc_to_hover_over(
    browser: Browser, console: Serving
) -> None:
    send(console, "evt_times")
    context = browser.new_context(timezone_id="Asia/Tokyo")
    page = context.new_page()
    log_in(page, console.url)
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_times")
    time = page.locator("time").first
    shown, exact = time.inner_text(), time.get_attribute("title")
    assert exact is not None
    assert exact.endswith("UTC")
    hours = (int(shown[11:13]) - int(exact[11:13])) % 24
    assert hours == 9
    context.close()


def test_the_fixture_can_be_taken_away(page: Page, console: Serving) -> None:
    send(console, "evt_fixture")
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_fixture")
    with page.expect_download() as taken:
        page.get_by_role("link", name="Test fixture").click()
    recorded = json.loads(taken.value.path().read_text())
    assert recorded["id"] == "evt_fixture"
    assert "stripe-signature" not in recorded["headers"]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy").first.click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == recorded
