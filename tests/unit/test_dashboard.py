"""The dashboard fits Grafana, Prometheus and what is really told."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.prometheus import (
    ALERTS,
    DASHBOARD,
    METRIC,
    SUFFIX,
    Panel,
    dashboard,
    metrics_in,
    panels,
    promtool,
    queries,
    rules,
)

PAGE: Final = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
DOCUMENTED: Final = set(re.findall(r"^\| `((?:gateway|process)_\w+)`", PAGE, flags=re.MULTILINE))
SHARED: Final = {"datasource", "namespace", "instance", "route", "handler"}
WIDTH: Final = 24
KINDS: Final = {"stat", "timeseries", "table"}


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    every = dashboard()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_which_unit_and_from_where(panel: Panel) -> None:
    assert panel["type"] in KINDS
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for part in (panel, *panel["targets"]):
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    if panel["type"] == "timeseries":
        assert all(target["legendFormat"] for target in panel["targets"])


def test_every_variable_that_is_used_is_there() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables == SHARED
    used = set(re.findall(r"\$\{?([a-z]+)\}?", DASHBOARD.read_text(encoding="utf-8")))
    assert used <= variables


def test_dashboard_and_rules_name_only_what_is_documented() -> None:
    named = {name for _, expr in queries() for name in metrics_in(expr)}
    named |= {name for rule in rules() for name in metrics_in(rule["expr"])}
    for variable in dashboard()["templating"]["list"]:
        named |= metrics_in(variable.get("definition", ""))
    assert {SUFFIX.sub("", name) for name in named} <= DOCUMENTED


def test_all_that_is_told_is_shown_or_watched() -> None:
    """A metric that nobody looks at is one to take away."""
    shown = {SUFFIX.sub("", name) for _, expr in queries() for name in metrics_in(expr)}
    shown |= {name for rule in rules() for name in metrics_in(rule["expr"])}
    assert DOCUMENTED - shown == {
        "gateway_ledger_age_seconds",
        "gateway_ledger_schema",
        "gateway_prune_steps_total",
        "gateway_refused_addresses",
        "gateway_rejected_total",
        "gateway_spool_bytes",
        "process_max_fds",
        "process_open_fds",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }


def test_what_every_process_tells_of_the_ledger_is_not_added_up() -> None:
    section = PAGE.partition("## What the ledger holds")[2].partition("\n## ")[0]
    of_the_ledger = set(re.findall(r"^\| `(gateway_\w+)`", section, re.MULTILINE))
    for title, expr in queries():
        for name in metrics_in(expr) & of_the_ledger:
            assert re.search(rf"\b(max|min)\b( by \([^)]*\))? \({name}|(max|min)\({name}", expr), (
                title
            )


def test_every_query_is_about_the_gateway_that_was_chosen() -> None:
    """And about one: what two ledgers hold must not be mixed."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    asked += [variables[name]["definition"] for name in ("instance", "route", "handler")]
    for expr in asked:
        assert expr.count('namespace=~"$namespace"') == len(METRIC.findall(expr)), expr
    chosen = variables["namespace"]
    assert (chosen["multi"], chosen["includeAll"]) == (False, False)


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    """As rules, which is what promtool checks."""
    recorded = [
        {"record": f"panel:{number}", "expr": expr} for number, (_, expr) in enumerate(queries())
    ]
    file = tmp_path / "queries.yaml"
    groups = {"groups": [{"name": "panels", "rules": recorded}]}
    file.write_text(yaml.safe_dump(groups), encoding="utf-8")
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(recorded)} rules found" in checked.stdout


def test_the_files_name_no_machine() -> None:
    for file in (DASHBOARD, ALERTS):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://|localhost|127\.0\.0", text)
