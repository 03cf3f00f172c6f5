"""By what workers are scaled: the adapter's rule, on what processes show, as Prometheus reckons."""

import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway.receive.metrics import Metrics
from tests.support.kubernetes import KUBERNETES, OVERLAYS, Cluster
from tests.support.needs import program

NAMESPACE: Final = "webhook-gateway"
BACKLOG: Final = "gateway_backlog_deliveries"

Series = dict[str, float]


def _rule() -> dict[str, Any]:
    values = yaml.safe_load((KUBERNETES / "monitoring" / "adapter.yaml").read_text("utf-8"))
    [rule] = values["rules"]["external"]
    assert isinstance(rule, dict)
    return rule


def _query() -> str:
    """As the adapter asks it."""
    query = _rule()["metricsQuery"].replace("<<.Series>>", BACKLOG)
    found: str = query.replace("<<.LabelMatchers>>", f'namespace="{NAMESPACE}"')
    assert "<<" not in found
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_adapter_serves_what_the_autoscaler_of_workers_asks_for(overlay: str) -> None:
    [metric] = Cluster(overlay).one("HorizontalPodAutoscaler", "gateway-worker")["spec"]["metrics"]
    rule = _rule()
    assert metric["external"]["metric"] == {"name": rule["name"]["as"]}
    assert metric["external"]["target"]["type"] == "AverageValue"
    assert rule["resources"] == {"overrides": {"namespace": {"resource": "namespace"}}}
    assert rule["seriesQuery"].startswith(f"{BACKLOG}{{")


def test_the_query_uses_what_serve_shows_so_that_it_holds_without_a_worker() -> None:
    metrics = Metrics()
    metrics.watch_ledger("postgresql://nowhere", lately=timedelta(seconds=30))
    shown = {metric.name for metric in metrics.registry.collect()}
    assert set(re.findall(r"\bgateway_\w+", _query())) <= shown


def _told(pod: str, name: str, **labels: str) -> str:
    given = {"namespace": NAMESPACE, "pod": pod, **labels}
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in given.items()) + "}"


def _due(pod: str, handler: str, **labels: str) -> str:
    return _told(pod, BACKLOG, **{"route": "stripe", "handler": handler, "state": "due"} | labels)


UP: Final = {_told(pod, "gateway_ledger_up"): 1.0 for pod in ("a", "b")}
SEEN_BY_TWO: Final = {_due("a", "mail"): 300, _due("b", "mail"): 310, _due("a", "books"): 50}


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param(UP | SEEN_BY_TWO, 360, id="of each handler what is known best"),
        pytest.param(UP, 0, id="nothing waits"),
        pytest.param({_told("a", "gateway_ledger_up"): 0.0}, None, id="the ledger is away"),
        pytest.param({}, None, id="nobody is scraped"),
        pytest.param(
            UP | SEEN_BY_TWO | {_told("a", "gateway_paused", route="stripe", handler="mail"): 1},
            50,
            id="a paused handler needs no worker",
        ),
        pytest.param(
            UP | SEEN_BY_TWO | {_told("b", "gateway_paused", route="stripe", handler=""): 1},
            0,
            id="nor does a paused route",
        ),
        pytest.param(
            UP | SEEN_BY_TWO | {_told("b", "gateway_orphaned", route="stripe", handler="books"): 1},
            310,
            id="nor one that no worker has",
        ),
        pytest.param(UP | {_due("a", "mail", state="later"): 9}, 0, id="nor a retry to come"),
        pytest.param(UP | {_due("a", "mail", namespace="other"): 9}, 0, id="nor another gateway"),
    ],
)
def test_workers_are_scaled_by_what_waits_for_them(
    tmp_path: Path, series: Series, expected: float | None
) -> None:
    rules = {"groups": [{"name": "adapter", "rules": [{"record": "backlog", "expr": _query()}]}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    samples = [] if expected is None else [{"labels": "backlog", "value": expected}]
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": f"{v:g}"} for k, v in series.items()],
                "promql_expr_test": [
                    {"expr": "backlog", "eval_time": "0m", "exp_samples": samples}
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test), encoding="utf-8")
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
