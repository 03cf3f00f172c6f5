"""Every link in every page of the tree leads somewhere, and every page can be found."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

PROJECT: Final = Path(__file__).parents[2]
INDEX: Final = PROJECT / "docs" / "README.md"
NOT_OURS: Final = {".venv", ".gateway", ".git", ".pytest_cache", ".hypothesis", "node_modules"}
PAGES: Final = sorted(
    page for page in PROJECT.rglob("*.md") if not NOT_OURS & set(page.relative_to(PROJECT).parts)
)
WITH_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", flags=re.IGNORECASE)


def _name(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def _text(page: Path) -> str:
    """Without blocks of code and comments, in which nothing is a link or a heading."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def _targets(page: Path) -> list[str]:
    text = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", _text(page))
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    referred = re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, flags=re.MULTILINE)
    html = re.findall(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"", text)
    return inline + referred + html


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", _text(page), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


def _relative(page: Path) -> Iterator[tuple[str, Path, str]]:
    for target in _targets(page):
        if not WITH_SCHEME.match(target):
            path, _, anchor = target.partition("#")
            yield target, page if not path else (page.parent / unquote(path)).resolve(), anchor


def test_there_are_pages_and_links() -> None:
    assert {PROJECT / "README.md", PROJECT / "CHANGELOG.md", INDEX} <= set(PAGES)
    assert sum(len(_targets(page)) for page in PAGES) > 200


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_to_a_file_of_the_tree(page: Path) -> None:
    for target, file, _ in _relative(page):
        assert file.is_relative_to(PROJECT), f"{target} leads out of the tree"
        assert file.exists(), f"{target} is not there"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_anchors_are_headings_of_the_page_that_is_linked_to(page: Path) -> None:
    for target, file, anchor in _relative(page):
        if anchor and file.suffix == ".md" and file.exists():
            assert anchor in _anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_to_elsewhere_are_whole(page: Path) -> None:
    for target in _targets(page):
        if WITH_SCHEME.match(target):
            parts = urlsplit(target)
            assert parts.scheme in {"https", "http", "mailto"}, target
            assert parts.scheme == "mailto" or "." in (parts.hostname or ""), target


def test_every_page_of_the_docs_can_be_reached_from_their_index() -> None:
    reached: set[Path] = set()
    waiting = [INDEX]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [file for _, file, _ in _relative(page) if file in PAGES]
    missing = {page for page in PAGES if page.is_relative_to(INDEX.parent)} - reached
    assert not missing, sorted(map(_name, missing))


def test_the_index_itself_names_every_page() -> None:
    named = {file for _, file, _ in _relative(INDEX)}
    assert set(INDEX.parent.glob("*.md")) - {INDEX} <= named


def test_the_readme_leads_to_the_index() -> None:
    assert INDEX in {file for _, file, _ in _relative(PROJECT / "README.md")}
