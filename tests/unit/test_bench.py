"""The published figures are those that were measured, and the verdicts are right."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from bench.__main__ import added
from bench.chart import draw
from bench.page import BEGIN, END, PAGE, figures, write_figures
from bench.targets import Target, check_targets

RESULTS: Final = Path(__file__).parents[2] / "bench" / "results"


@pytest.fixture(scope="module")
def latest() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / "latest.json").read_text())
    return document


def test_the_page_has_the_figures_of_the_last_full_run(latest: dict[str, Any]) -> None:
    assert latest["mode"] == "full"
    assert latest["failed"] == {}
    assert f"{BEGIN}\n{figures(latest)}\n{END}" in PAGE.read_text()


def test_the_chart_is_drawn_from_the_last_full_run(latest: dict[str, Any]) -> None:
    assert draw(latest) == (RESULTS / "latest.svg").read_text()


def test_the_verdicts_are_those_of_the_figures(latest: dict[str, Any]) -> None:
    targets = check_targets(latest["stages"])
    assert [target.as_json() for target in targets] == latest["targets"]
    page = PAGE.read_text()
    assert all(
        target.met is not None or f"not measured  {target.name}" in page for target in targets
    )


def test_a_page_without_a_place_for_the_figures_is_refused(
    latest: dict[str, Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place")
    with pytest.raises(ValueError, match="no single place"):
        write_figures(latest, page)
    assert page.read_text() == "no place"


def test_a_stage_that_is_added_says_itself_when_it_was_run(latest: dict[str, Any]) -> None:
    run = {"date": "2030-01-02T03:04:05+00:00", "commit": "abc", "machine": latest["machine"]}
    more = run | {"stages": {"burst": latest["stages"]["burst"]}}
    document = added(latest, more)
    assert document["stages"].keys() == latest["stages"].keys()
    assert document["date"] == latest["date"]
    assert "The burst: on 2030-01-02 at commit `abc`" in figures(document)


AT_LEAST = Target(name="t", at_least=True, bound=0.8, value=0.8)
AT_MOST = replace(AT_LEAST, at_least=False)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (AT_LEAST, "met"),
        (replace(AT_LEAST, value=0.79), "MISSED"),
        (replace(AT_LEAST, value=0.79, slack=0.02), "met"),
        (AT_MOST, "met"),
        (replace(AT_MOST, value=0.81), "MISSED"),
        (replace(AT_MOST, value=None), "not measured"),
        (replace(AT_MOST, bound=None), "not measured"),
    ],
)
def test_a_target_is_met_or_missed(target: Target, verdict: str) -> None:
    assert target.verdict == verdict
