"""The figures of the last full run, in docs/performance.md: never others than those measured."""

import contextlib
import io
import re
from pathlib import Path

from bench.figures import Results
from bench.report import print_report
from bench.targets import check_targets

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures, written by make bench -->", "<!-- end of figures -->"


def figures(document: Results) -> str:
    """The report as it stands on the page."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_report(document, check_targets(document["stages"]))
    measured = f"Measured on {_run(document)}."
    for stage, run in document.get("added", {}).items():
        commit_ms = run["machine"]["commit_p50_ms"]
        measured += f" The {stage}: on {_run(run)}, when a bare commit took {commit_ms:.2f} ms."
    return f"{measured}\n\n```text\n{text.getvalue().strip()}\n```"


def _run(of: Results) -> str:
    return f"{of['date'][:10]} at commit `{of['commit']}`"


def write_figures(document: Results, page: Path = PAGE) -> None:
    """Puts them in the place of the former ones."""
    text = page.read_text(encoding="utf-8")
    block = f"{BEGIN}\n{figures(document)}\n{END}"
    new, count = re.subn(
        re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block, text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{page.name} has no single place for the figures")
    page.write_text(new, encoding="utf-8")
