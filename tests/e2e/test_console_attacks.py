"""The console under attack: what senders can store, what other sites can send, who may do what."""

import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, expect

from gateway.console.pages import ACTIONS
from gateway.console.pages.dead import LOOKED_AT
from tests.support.browser import Watched, open_browser
from tests.support.console import ADMIN, READER, TOKENS, Ledger, log_in, logged_in, send, wait_for
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S

EVIL = (
    '"\'><script>document.title="owned"</script><img src=x onerror=alert(1)>'
    "<svg onload=alert(2)>{{7*7}}\u202egnp.exe\u2066"
)
ODD_ID = "evt/../a b?c=d&e#f%2F\"'<i>\u200b\u202e中"
NAMED = "http://gateway.test"
"""A name that is no loopback: there a browser without TLS says less of where orders come from."""

MADE_BY_THEM = "main script, main img, main svg:not(.chart), main i:not([class])"
HEADERS = {
    "content-security-policy": "script-src 'self'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
HOSTILE_VALUES = (
    "\x00",
    "9" * 5000,
    "-1",
    "'\"<>&`",
    "\n\r",
    "x" * 20_000,
    "%" * 500,
    "\\",
    "-infinity",
    "9999-12-31T23:59:59Z",
    "999999999999d",
    "WzFd",
    "１２",  # noqa: RUF001 (digits elsewhere)
)
ASKED = {
    "": ("span",),
    "events": ("route type status handler account object since until after q limit"),
    "dead": ("route type handler account error cause since until after limit"),
    "dead/all?action=replay": ("route type account error cause since until action"),
    "event": ("id route"),
    "event/fixture.json": ("id route"),
    "bulk": ("after"),
    "rejected": ("route code since after"),
    "reconcile": ("route after"),
    "login": ("next"),
}


@pytest.fixture(scope="module")
def console(module_project: Project) -> Iterator[Serving]:
    """A `serve` with both tokens, and a worker beside it."""
    with module_project.serve(**TOKENS) as serving, module_project.process("worker"):
        wait_for(serving.ready())
        yield serving


@pytest.fixture
def ledger(module_project: Project) -> Ledger:
    return Ledger(module_project.environ["GATEWAY_DATABASE_URL"])


@pytest.fixture(scope="module")
def browser(console: Serving) -> Iterator[Browser]:
    with open_browser("--host-resolver-rules=MAP gateway.test 127.0.0.1") as opened:
        yield opened


@pytest.fixture
def admin(console: Serving) -> Iterator[httpx.Client]:
    with logged_in(console.url) as client:
        yield client


def poison(ledger: Ledger, event_id: str) -> None:
    """The event and all that stands beside it: everything that anybody could have written."""
    ledger.run(
        "update gateway.processed_events"
        " set type = $2, account = $2, object_id = $2, repeat_of = $2 where event_id = $1",
        event_id,
        EVIL,
    )
    delivery = ledger.value(
        "insert into gateway.deliveries (route, event_id, handler, status, finished_at, error)"
        " values ('stripe', $1, $2, 'dead', now(), $2) returning id",
        event_id,
        EVIL,
    )
    ledger.run(
        "insert into gateway.attempts"
        " (delivery_id, number, started_at, finished_at, outcome, error)"
        " values ($1, 1, now(), now(), 'dead', $2)",
        delivery,
        EVIL,
    )
    ledger.run(
        "insert into gateway.effects (delivery_id, name, token, result)"
        " values ($1, $2, gen_random_uuid(), to_json($2::text))",
        delivery,
        EVIL,
    )
    for table, columns, values in (
        ("audit", "actor, action, delivery_id, reason", f"$1, $1, {delivery}, $1"),
        ("pauses", "route, handler, actor, reason", "'stripe', $1, $1, $1"),
        (
            "bulk_orders",
            "action, filter, actor, reason, began_at, total, mark_at, stepped_at",
            "'replay', jsonb_build_object('error', $1::text), $1, $1, now(), 5, now(),"
            " now() - interval '1 h'",
        ),
        (
            "rejected",
            "route, at, code, cause, detail, method, path, address, sender, headers, body,"
            " body_bytes, size",
            "'', now(), 'NOT_FOUND', $1, $1, $1, $1, $1, $1, jsonb_build_object($1::text,"
            " $1::text), convert_to($1, 'utf8'), 9, 9",
        ),
        (
            "reconciliations",
            "route, actor, since, until, note, dry_run, status, error, finished_at",
            "'stripe', $1, now(), now(), $1, false, 'failed', $1, now()",
        ),
        ("reloads", "host, pid, outcome, error", "$1, 1, 'refused', $1"),
    ):
        ledger.run(f"insert into gateway.{table} ({columns}) values ({values})", EVIL)  # noqa: S608


def test_nothing_that_anybody_wrote_becomes_part_of_a_page(
    browser: Browser, console: Serving, ledger: Ledger
) -> None:
    send(console, ODD_ID, extra=EVIL)
    poison(ledger, ODD_ID)
    order = ledger.value("select max(id) from gateway.bulk_orders")
    refused = ledger.value("select max(id) from gateway.rejected")
    run = ledger.value("select max(id) from gateway.reconciliations")
    context = browser.new_context()
    page = context.new_page()
    watched = Watched(page, console.url)
    log_in(page, console.url, name=EVIL)
    for path in (
        *("", "events", f"event?{urlencode({'route': 'stripe', 'id': ODD_ID})}", "dead"),
        *(
            "dead/all?action=replay",
            f"dead/all?{urlencode({'action': 'discard', 'error': EVIL[:90]})}",
        ),
        *("bulk", f"bulk/{order}", "rejected", f"rejected/{refused}?body=1", "handlers"),
        *("routes", "reconcile", f"reconcile/{run}", "system", "system/doctor"),
        *(f"events?{urlencode({'q': EVIL})}", f"events?{urlencode({'type': EVIL})}"),
        *(f"dead?{urlencode({'cause': EVIL})}", f"{EVIL}"),
    ):
        page.goto(f"{console.url}/console/{path}")
        assert "owned" not in page.title(), path
        assert (
            page.locator("main script, main img, main svg:not(.chart), main i:not([class])").count()
            == 0
        )
        text = page.locator("body").inner_text()
        assert not {"\u202e", "\u2066", "\u200b"} & set(text), path
        links = page.locator("a").evaluate_all("all => all.map(a => a.href)")
        assert all(link.startswith(f"{console.url}/console/") for link in links), path
    refusals = [c for c in watched.complaints if "404" not in c and "400" not in c]
    assert refusals == []
    assert watched.foreign == []
    context.close()


def test_an_id_of_any_shape_is_found_opened_and_replayed(
    browser: Browser, console: Serving, ledger: Ledger
) -> None:
    odd = f"{ODD_ID} opened"
    send(console, odd)
    context = browser.new_context()
    page = context.new_page()
    log_in(page, console.url)
    page.goto(f"{console.url}/console/events?{urlencode({'q': odd})}")
    expect(page.locator(".delivery header .chip")).to_have_text("done")
    page.get_by_text("Replay or discard").click()
    page.get_by_role("button", name="Run it again").click()
    expect(page.get_by_role("status")).to_contain_text("runs again")
    expect(page.locator(".subject .id")).to_contain_text("opened")
    count = "select count(*) from gateway.audit where event_id = $1 and action = 'replay'"
    assert ledger.value(count, odd) == 1
    context.close()


def test_a_bulk_operation_is_about_what_was_counted_whatever_does_not_show(
    admin: httpx.Client, ledger: Ledger
) -> None:
    ledger.add_dead(2, "evt_zero_", error="Boom: a\u200bb\u202e")
    ledger.add_dead(3, "evt_shown_", error="Boom: a\\u200bb\\u202e")
    page = admin.get("/console/dead/all", params={"action": "discard", "error": "a\u200bb"})
    assert "Discard 2 dead letters?" in page.text
    answer = order_as_shown(admin, page)
    assert "/console/bulk/" in answer.headers["location"]
    order = int(answer.headers["location"].rpartition("/")[2])
    total = "select total from gateway.bulk_orders where id = $1"
    assert ledger.value(total, order) == 2
    kept = ledger.value("select filter ->> 'error' from gateway.bulk_orders where id = $1", order)
    assert kept == "a\u200bb"


@pytest.mark.parametrize("rate", ["9" * 5000, "10/s", "-5", "１", "0"])  # noqa: RUF001
def test_a_rate_that_is_none_is_not_as_fast_as_it_goes(
    admin: httpx.Client, ledger: Ledger, rate: str
) -> None:
    before = ledger.value("select count(*) from gateway.bulk_orders")
    query = urlencode({"action": "discard", "from": "/console/dead"})
    answer = admin.post(f"/console/dead/all?{query}", data={"rate": rate})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/console/dead"
    assert "Not%20done" in answer.headers["set-cookie"]
    assert ledger.value("select count(*) from gateway.bulk_orders") == before


WRITTEN = """
select array[(select count(*) from gateway.audit), (select count(*) from gateway.bulk_orders),
             (select count(*) from gateway.processed_events), (select count(*) from gateway.pauses)]
"""


def test_a_reader_does_no_action_of_any_kind(console: Serving, ledger: Ledger) -> None:
    ledger.add_dead(1, "evt_only_", error="Boom: only looked at")
    id = ledger.value("select id from gateway.deliveries where event_id = 'evt_only_1'")
    before = ledger.value(WRITTEN)
    with logged_in(console.url, READER) as reader:
        for path in ACTIONS:
            place = path.format(route="stripe", delivery_id=id, bulk_id=1)
            query = {"route": "stripe", "handler": "x", "action": "discard", "all": "1", "id": "x"}
            data = {"type": "invoice.paid", "delivery": str(id), "action": "replay", "reason": "x"}
            answer = reader.post(f"/console{place}?{urlencode(query)}", data=data)
            assert answer.status_code == 303, path
            assert "may%20only%20look" in answer.headers["set-cookie"], path
    assert ledger.value(WRITTEN) == before
    assert ledger.value("select status from gateway.deliveries where id = $1", id) == "dead"


def test_every_order_leaves_a_row_with_who_gave_it(admin: httpx.Client, ledger: Ledger) -> None:
    ledger.add_dead(99, "evt_audited_", error="Boom: audited")
    ledger.add_unknown_effects(3, "evt_outcome_", handler="handlers.gone")
    of_effects = [
        ledger.value("select id from gateway.deliveries where event_id = $1", f"evt_outcome_{n}")
        for n in range(1, 3)
    ]
    ids = [
        ledger.value("select id from gateway.deliveries where event_id = $1", f"evt_audited_{n}")
        for n in range(1, 5)
    ]
    every: dict[str, tuple[str, dict[str, str]]] = {
        "/routes/{route}/test": ("/routes/stripe/test", {"type": "invoice.paid"}),
        "/deliveries/{delivery_id}/replay": (f"/deliveries/{ids[0]}/replay", {}),
        "/deliveries/{delivery_id}/discard": (f"/deliveries/{ids[1]}/discard", {}),
        "/deliveries/{delivery_id}/effects": (
            f"/deliveries/{of_effects[0]}/effects?effect=receipt",
            {"action": "confirm"},
        ),
        "/effects/ticked": (
            "/effects/ticked",
            {"effect": f"{of_effects[1]} receipt", "action": "confirm"},
        ),
        "/effects/all": ("/effects/all?action=confirm&handler=handlers.gone", {}),
        "/dead/ticked": ("/dead/ticked", {"delivery": str(ids[2]), "action": "discard"}),
        "/dead/all": ("/dead/all?action=discard&error=Boom: audited", {"rate": "1"}),
        "/bulk/{bulk_id}/stop": ("/bulk/LAST/stop", {}),
        "/bulk/{bulk_id}/resume": ("/bulk/LAST/resume", {}),
        "/handlers/pause": ("/handlers/pause?route=stripe", {"reason": "audited"}),
        "/handlers/resume": ("/handlers/resume?route=stripe", {}),
    }
    elsewhere = {"/reconcile", "/event/reveal", "/rejected/release"}  # which need more
    assert every.keys() | elsewhere == ACTIONS.keys()
    seen = "select coalesce(max(id), 0) from gateway.audit"
    by = "select count(*) from gateway.audit where id > $1 and actor = 'Ada (console)'"
    for order, (path, form) in every.items():
        before = ledger.value(seen)
        last = ledger.value("select coalesce(max(id), 0) from gateway.bulk_orders")
        answer = admin.post(f"/console{path.replace('LAST', str(last))}", data=form)
        assert answer.status_code == 303, order
        assert ledger.value(by, before) >= 1, (order, answer.headers.get("set-cookie"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1"},
        {"sec-fetch-site": "cross-site", "origin": "OWN"},
        {"sec-fetch-site": "same-site", "origin": "OWN"},
        {"sec-fetch-site": "none"},
        {"x-http-method-override": "GET", "origin": "null"},
        {"referer": "OWN/console/"},
    ],
)
def test_what_does_not_come_from_a_page_of_ours_does_nothing(
    console: Serving, headers: dict[str, str]
) -> None:
    given = {name: value.replace("OWN", console.url) for name, value in headers.items()}
    with logged_in(console.url) as client:
        del client.headers["origin"]
        for path in (*ACTIONS, "/login", "/logout"):
            answer = client.post(f"/console{path}", headers=given, data={"token": ADMIN})
            assert answer.status_code == 403, path
            assert "set-cookie" not in answer.headers
        for method in ("PUT", "PATCH", "DELETE"):
            answer = client.request(method, "/console/handlers/pause", headers=given)
            assert answer.status_code == 403
        assert client.get("/console/").status_code == 200


def test_no_question_is_too_odd_for_an_answer(admin: httpx.Client) -> None:
    for path, names in ASKED.items():
        for name in "".join(names).split():
            for value in HOSTILE_VALUES:
                place = f"/console/{path}{'&' if '?' in path else '?'}{urlencode({name: value})}"
                answer = admin.get(place)
                assert answer.status_code in (200, 303, 400, 404, 409), place[:200]
    for path in ("bulk", "rejected", "reconcile"):
        for value in ("x", "0", "-1", "9" * 19, "%00", "1e3", "１"):  # noqa: RUF001
            assert admin.get(f"/console/{path}/{value}").status_code in (400, 404), value


def test_every_answer_says_what_a_browser_may_do_with_it(admin: httpx.Client) -> None:
    for path in ("", "events", "login", "nowhere", "bulk/0", "static/console.js", "static/none"):
        answer = admin.get(f"/console/{path}")
        for name, value in HEADERS.items():
            assert value in answer.headers[name], path
        assert "unsafe" not in answer.headers["content-security-policy"]
        stored = "max-age" if path == "static/console.js" else "no-store"
        assert stored in answer.headers["cache-control"], path


def test_one_logs_in_and_acts_under_a_name_without_tls(
    browser: Browser, console: Serving, ledger: Ledger
) -> None:
    """There a browser says with `Origin` alone where an order comes from."""
    ledger.add_dead(1, "evt_named_", error="Boom: named")
    port = console.url.rpartition(":")[2]
    url = f"{NAMED}:{port}"
    context = browser.new_context()
    page = context.new_page()
    log_in(page, url)
    page.goto(f"{url}/console/event?route=stripe&id=evt_named_1")
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("status")).to_contain_text("is discarded")
    other = context.new_page()
    other.route("**/evil", lambda r: r.fulfill(content_type="text/html", body=FORGED.format(url)))
    other.goto(f"http://127.0.0.1:{port}/evil")
    other.get_by_role("button").click()
    expect(other.locator("body")).to_contain_text("did not come from a page of the console")
    context.close()


FORGED = '<form method="post" action="{}/console/logout"><button>free money</button></form>'


def test_cookies_are_for_tls_alone_where_the_browser_uses_it(console: Serving) -> None:
    host = "hooks.example.com"
    for origin, is_secure in ((f"https://{host}", True), (f"http://{host}", False)):
        answer = httpx.post(
            f"{console.url}/console/login",
            headers={"origin": origin, "host": host},
            data={"token": ADMIN, "next": "//evil.example/"},
            timeout=PATIENCE_S,
        )
        assert answer.headers["location"] == "/console/"
        cookies = answer.headers.get_list("set-cookie")
        assert len(cookies) == 2
        for cookie in cookies:
            assert ("; Secure" in cookie) is is_secure
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie
            assert "Path=/console" in cookie


def test_a_log_out_ends_the_session_in_every_process_and_for_every_copy(
    console: Serving, module_project: Project, ledger: Ledger
) -> None:
    with logged_in(console.url) as client, logged_in(console.url) as other:
        stolen = dict(client.cookies)
        with module_project.serve(**TOKENS) as elsewhere:
            wait_for(elsewhere.ready())
            place = f"{elsewhere.url}/console/"
            assert httpx.get(place, cookies=stolen, timeout=PATIENCE_S).status_code == 200
            answer = client.post("/console/logout")
            assert answer.headers["location"] == "/console/login"
            assert httpx.get(place, cookies=stolen, timeout=PATIENCE_S).status_code == 303
            assert (
                httpx.get(f"{console.url}/console/", cookies=stolen, timeout=PATIENCE_S).status_code
                == 303
            )
            order = f"{console.url}/console/handlers/pause?route=stripe"
            own = {"origin": console.url}
            answer = httpx.post(
                order, cookies=stolen, headers=own, data={"reason": "x"}, timeout=PATIENCE_S
            )
            assert answer.headers["location"].startswith("/console/login")
            assert (
                httpx.get(place, cookies=dict(other.cookies), timeout=PATIENCE_S).status_code == 200
            )
    assert ledger.value("select count(*) from gateway.audit where reason = 'x'") == 0


def test_what_is_copied_as_curl_sends_the_same_request_again(
    browser: Browser, console: Serving
) -> None:
    text = "it's a family: \U0001f468\u200d\U0001f469\u200d\U0001f467 \\n $(id) `id` \u202e !"
    send(console, "evt_curl", extra=text)
    context = browser.new_context()
    page = context.new_page()
    log_in(page, console.url)
    page.goto(f"{console.url}/console/event?route=stripe&id=evt_curl")
    page.get_by_text("As curl").click()
    command = page.locator("pre[data-copy]").inner_text()
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert '"status":"duplicate"' in ran.stdout, ran.stdout
    context.close()


def test_a_type_of_any_script_can_be_saved_as_a_file(admin: httpx.Client, console: Serving) -> None:
    body, headers = stripe_request("evt_script", "发票.已付")
    assert wait_for(console.post(body, headers)).status_code == 200
    answer = admin.get("/console/event/fixture.json?route=stripe&id=evt_script")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="__.__.json"'


def test_a_token_that_was_sent_to_a_webhook_is_not_kept(console: Serving, ledger: Ledger) -> None:
    body, headers = stripe_request("evt_token", secret="whsec_other")
    for token in (ADMIN, READER):
        sent = {**headers, "x-note": f"token {token}"}
        assert wait_for(console.post(body, sent)).status_code == 403
    kept = "select count(*) from gateway.rejected where headers::text like '%x-note%'"
    deadline = time.monotonic() + PATIENCE_S
    while ledger.value(kept) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)  # they are written down after the answer
    assert ledger.value(kept) == 2
    leaked = "select count(*) from gateway.rejected where headers::text like '%-of-the-console-%'"
    assert ledger.value(leaked) == 0


def test_of_very_many_some_are_counted_and_the_order_is_about_all_the_same(
    admin: httpx.Client, ledger: Ledger
) -> None:
    ledger.add_dead(20, "evt_older_", error="Boom: older")
    ledger.add_dead(LOOKED_AT, "evt_newer_", error="Boom: newer")
    died = "update gateway.deliveries set finished_at = now() - $2::interval where error = $1"
    ledger.run(died, "Boom: older", timedelta(hours=3))
    ledger.run(died, "Boom: newer", timedelta(0))
    page = admin.get("/console/dead/all", params={"action": "discard", "error": "Boom: older"})
    assert "Discard all dead letters that match?" in page.text
    assert "0 of the newest 5,000 dead letters match." in page.text
    answer = order_as_shown(admin, page)
    order = int(answer.headers["location"].rpartition("/")[2])
    assert ledger.value("select total from gateway.bulk_orders where id = $1", order) == 20


def order_as_shown(admin: httpx.Client, page: httpx.Response) -> httpx.Response:
    place = page.text.split('action="/console/dead/all?', 1)[1].split('"')[0]
    return admin.post(f"/console/dead/all?{unescape(place)}", data={"reason": "", "rate": ""})
