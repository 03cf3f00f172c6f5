"""Writes "What to watch" of docs/metrics.md from the rules: `python -m tests.support.watching`."""

import re
from pathlib import Path
from typing import Final

from tests.support.prometheus import Rule, rules

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "metrics.md"
BEGIN: Final = (
    "<!-- written from deploy/prometheus/alerts.yaml: python -m tests.support.watching -->\n"
)
END: Final = "<!-- until here -->\n"


def render() -> str:
    """One row for each alert."""
    rows = ["| alert | severity | after | what it means | look at |", "|---|---|---|---|---|"]
    rows += [_row(rule) for rule in rules()]
    return "\n".join(rows) + "\n"


def headings(page: Path) -> dict[str, str]:
    """By the anchor that GitHub makes of each."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"): text for text in found}


def _row(rule: Rule) -> str:
    told = rule["annotations"]
    page, _, place = told["runbook"].removeprefix("docs/").partition("#")
    name = headings(DOCS / page)[place] if place else page.removesuffix(".md")
    where = f"#{place}" if page == PAGE.name else f"{page}#{place}" if place else page
    cells = (
        f"`{rule['alert']}`",
        rule["labels"]["severity"],
        rule.get("for", ""),
        f"{_plain(told['summary'])}. {told['description']}",
        f"[{name.replace('`', '')}]({where})",
    )
    return f"| {' | '.join(cells)} |"


def _plain(summary: str) -> str:
    """Without what Prometheus fills in: names stand for themselves, values for any."""
    plain = re.sub(r"{{ \$labels\.(\w+) }}", r"`\1`", summary)
    plain = re.sub(r"{{ \$value[^}]*}}", "…", plain)
    return plain[0].upper() + plain[1:]


def written(page: str) -> str:
    """The part of the page that is written from the rules."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + render() + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
