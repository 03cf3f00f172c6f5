"""docs/security.md names tests and files that exist: a claim without one is only a claim."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SECTIONS: Final = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
ATTACKERS: Final = SECTIONS[: SECTIONS.index("What goes out")]


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert named - there == set()
    assert len(named) > 50


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:gateway|tests|deploy|docs)/[\w./-]+)`", PAGE)
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert named


def test_every_anchor_of_the_page_leads_somewhere() -> None:
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in SECTIONS}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors


def test_of_every_attacker_it_says_what_stops_him_and_what_is_left() -> None:
    for title in ATTACKERS:
        section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
        assert "`test_" in section, title
        assert "\nLeft to you: " in section, title
    assert len(ATTACKERS) == 8


def test_it_ends_with_a_list_to_tick_off() -> None:
    assert SECTIONS[-1] == "Before you go live"
    assert PAGE.rpartition("## ")[2].count("- [ ] ") >= 10
