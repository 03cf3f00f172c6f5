"""From nothing to the first event, as a newcomer sees it: no token, on the loopback of an `up`."""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import check_accessible, open_browser
from tests.support.processes import Project, Serving
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def console(module_project: Project) -> Iterator[Serving]:
    """A `serve` as `up` starts it, and a worker."""
    made_up = module_project.directory / "secrets.json"
    made_up.write_text("{}")
    with (
        module_project.serve(GATEWAY_DEV_SECRETS=str(made_up)) as serving,
        module_project.process("worker"),
    ):
        asyncio.run(serving.ready())
        yield serving


@pytest.fixture(scope="module")
def browser(console: Serving) -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def test_the_first_page_leads_to_the_first_event(browser: Browser, console: Serving) -> None:
    page = browser.new_page()
    page.goto(f"{console.url}/console")
    expect(page.get_by_role("heading", name="No event has come yet")).to_be_visible()
    expect(page.get_by_text(f"{console.url}/webhooks/stripe")).to_be_visible()
    check_accessible(page)
    page.get_by_role("button", name="to stripe").click()
    expect(page.get_by_role("status")).to_contain_text("answered 200")
    expect(page).to_have_url(re.compile(r"/console/event\?route=stripe&id=evt_"))
    expect(page.locator(".delivery header .chip")).to_have_text("done")
    page.get_by_role("link", name="Routes").click()
    route = page.locator("#route-stripe")
    route.get_by_text("Send a signed test event").click()
    route.get_by_label("Type").fill("invoice.paid")
    route.get_by_role("button", name="Send it").click()
    expect(page.get_by_role("status")).to_contain_text("answered 200")
    expect(page).to_have_url(re.compile(r"/console/event\?route=stripe&id=evt_"))
    expect(page.locator(".delivery header .chip")).to_have_text("done")
    about = page.locator("dt", has_text="About").locator("+ dd a")
    object_id = about.inner_text()
    page.get_by_label("Event, delivery or object id").fill(object_id)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/console/events.object=in_"))
    expect(page.locator("tr[data-row]")).to_have_count(1)
    page.goto(f"{console.url}/console/")
    expect(page.get_by_role("heading", name="No event has come yet")).to_have_count(0)


def test_the_root_leads_to_the_console(console: Serving, module_project: Project) -> None:
    for method in ("GET", "HEAD"):
        answer = httpx.request(method, f"{console.url}/", timeout=PATIENCE_S)
        assert (answer.status_code, answer.headers["location"]) == (307, "/console/")
    lost = httpx.post(f"{console.url}/", content=b"{}", timeout=PATIENCE_S)
    assert (lost.status_code, lost.json()) == (404, {"error": "NOT_FOUND"})

    def paths() -> list[str]:
        rows = json.loads(module_project.run("rejected", "--json").stdout)
        return [row["path"] for row in rows if row["code"] == "NOT_FOUND"]

    with ThreadPoolExecutor(1) as thread:  # playwright's loop runs in this one
        thread.submit(asyncio.run, until(lambda: paths() == ["/"])).result()


def test_another_name_for_this_machine_opens_nothing(console: Serving) -> None:
    """A page elsewhere can have its own name lead to the loopback, and read what is answered."""
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""):
        answer = httpx.get(f"{console.url}/console/", headers={"host": host}, timeout=PATIENCE_S)
        assert answer.status_code in (400, 403), host
    assert httpx.get(f"{console.url}/console/", timeout=PATIENCE_S).status_code == 200
    for name in ("x-forwarded-for", "forwarded", "x-forwarded-host", "via", "cf-connecting-ip"):
        answer = httpx.get(
            f"{console.url}/console/", headers={name: "localhost"}, timeout=PATIENCE_S
        )
        assert answer.status_code == 403, name  # a tunnel that asks for us as localhost
    port = console.url.rpartition(":")[2]
    named = httpx.get(
        f"{console.url}/console/", headers={"host": f"localhost:{port}"}, timeout=PATIENCE_S
    )
    assert named.status_code == 200


def test_without_a_token_there_is_no_console_elsewhere(module_project: Project) -> None:
    with module_project.serve() as serving, ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, serving.ready()).result()  # playwright's loop runs in this one
        assert httpx.get(f"{serving.url}/console/", timeout=PATIENCE_S).status_code == 404
        assert httpx.get(f"{serving.url}/console/login", timeout=PATIENCE_S).status_code == 404
        assert httpx.get(f"{serving.url}/", timeout=PATIENCE_S).status_code == 404
