"""A real Chromium, driven."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.needs import program
from tests.support.waiting import PATIENCE_S
from tests.tools import find

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser(*options: str) -> Iterator[Browser]:
    """Start the Chromium of the system."""
    path = next(filter(None, map(find, NAMES)), None) or program("chromium")
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *options])
        yield browser
        browser.close()


AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def check_accessible(page: Page) -> None:
    """What axe-core finds wrong with a page is a failure, with its words."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run()")["violations"]
    told = [
        f"{violation['id']}: {node['html'][:120]}: {node['failureSummary']}"
        for violation in found
        for node in violation["nodes"]
    ]
    assert not found, "\n".join([page.url, *told])


class Watched:
    """Everything that a page asks for and complains of."""

    def __init__(self, page: Page, origin: str) -> None:
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda r: self._note(r.url, origin))
        page.on("console", lambda m: self.complaints.append(m.text))
        page.on("pageerror", lambda e: self.complaints.append(str(e)))
        page.on("dialog", lambda d: self.complaints.append(f"dialog: {d.message}"))

    def _note(self, url: str, origin: str) -> None:
        if not url.startswith(origin):
            self.foreign.append(url)
