"""Every alert fires where it should and keeps still where it should not, says the real promtool."""

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from gateway.ledger.metrics import REPAIRS
from tests.support.prometheus import ALERTS, SCRAPING, Rule, metrics_in, promtool, rules
from tests.support.watching import DOCS, PAGE, headings, render, written

Series = dict[str, str]
SERVE: Final = 'instance="g1",job="gateway-serve"'
PLACE: Final = 'route="stripe",handler="h.a"'
DAY: Final = 24 * 4
"""In steps of a quarter of an hour."""


class Case(NamedTuple):
    """What is going on, step by step, for an alert and against it."""

    bad: Series
    good: Series
    at: str = "1h"
    step: str = "1m"
    beside: bool = True
    """Whether it is seen beside another gateway that is well."""


def requests(outcome: str, values: str) -> Series:
    return {f'gateway_requests_total{{{SERVE},route="stripe",outcome="{outcome}"}}': values}


def gauge(name: str, bad: str, good: str, labels: str = SERVE, at: str = "1h") -> Case:
    series = f"{name}{{{labels}}}"
    return Case({series: bad}, {series: good}, at)


def counter(name: str, good: str = "0x90", bad: str = "0+1x90", labels: str = SERVE) -> Case:
    return gauge(name, bad, good, labels)


def build(version: str, instance: str, namespace: str = "") -> str:
    labels = f'version="{version}",schema="17",process="serve",instance="{instance}"'
    return told_in(namespace, f"gateway_build_info{{{labels}}}")


def told_in(namespace: str, name: str) -> str:
    """A series with the label of its gateway, if it has none yet."""
    if not namespace or 'namespace="' in name:
        return name
    metric, _, labels = name.removesuffix("}").partition("{")
    label = f'namespace="{namespace}"'
    return f"{metric}{{{labels},{label}}}" if labels else f"{metric}{{{label}}}"


def attempts(done: str, retry: str) -> Series:
    return {
        f'gateway_attempts_total{{{PLACE},outcome="done"}}': done,
        f'gateway_attempts_total{{{PLACE},outcome="retry"}}': retry,
    }


def shed(sender_retries: str) -> str:
    return f'gateway_shed_total{{{SERVE},route="github",sender_retries="{sender_retries}"}}'


def slow(le: str) -> Series:
    """Sixty a minute, all of which took up to so long."""
    ends = ("0.5", "1", "2.5", "+Inf")
    bucket = f'gateway_acknowledge_seconds_bucket{{{SERVE},route="stripe",le='
    return {f'{bucket}"{end}"}}': "0x90" if float(end) < float(le) else "0+60x90" for end in ends}


GAPS: Final = 'gateway_reconcile_gaps{route="stripe",status="unrecoverable"}'
WORKER_UP: Final = 'up{instance="w1",job="gateway-worker"}'
OLDEST: Final = f"gateway_backlog_oldest_seconds{{{PLACE}}}"
CASES: Final[dict[str, list[Case]]] = {
    "GatewayDown": [
        gauge("up", "0x90", "1x90"),
        gauge("up", "0x90", "1x90", labels='job="webhook-gateway/gateway-worker"'),
        Case(  # somebody else's gateway is not ours to page for
            {f"up{{{SERVE}}}": "0x90"}, {'up{instance="a",job="api-gateway"}': "0x90"}
        ),
    ],
    "GatewayNoServe": [
        Case({WORKER_UP: "1x90"}, {WORKER_UP: "1x90", build("1", "g1"): "1x90"}),
        Case({f"up{{{SERVE}}}": "0x90"}, {build("1", "g1"): "1x90"}),
        Case({"up": "1x90"}, {build("1", "g1"): "1x90"}, beside=False),  # nothing is scraped
    ],
    "GatewayNotTaken": [
        Case(requests("UNAVAILABLE", "0+1x90"), requests("UNAVAILABLE", "7x90")),
        Case(requests("SHED", "0+1x90"), requests("accepted", "0+1x90")),
        Case(  # a failover, over in a moment
            requests("UNAVAILABLE", "0+1x90"), requests("UNAVAILABLE", "0x56 7x35")
        ),
    ],
    "GatewayEventsShed": [
        Case({shed("false"): "0+1x90"}, {shed("true"): "0+1x90"}),
        Case({shed("false"): "0x58 1x32"}, {shed("false"): "1x90"}),
    ],
    "GatewaySlowToAcknowledge": [Case(slow("2.5"), slow("0.5"))],
    "GatewayRefusing": [
        Case(requests("BAD_SIGNATURE", "0+2x90"), requests("BAD_SIGNATURE", "0x60 1x30")),
        Case(  # a stranger now and then, among thousands
            requests("STALE_TIMESTAMP", "0+2x90") | requests("accepted", "0+2x90"),
            requests("STALE_TIMESTAMP", "0+2x90") | requests("accepted", "0+100x90"),
        ),
    ],
    "GatewayFlooded": [
        Case(requests("TOO_MANY_REFUSED", "0+1x90"), requests("BAD_SIGNATURE", "0+1x90"))
    ],
    "GatewayHoldingBack": [
        Case(requests("RATE_LIMITED", "0+1x90"), requests("RATE_LIMITED", "3x90")),
        Case(requests("ADDRESS_REFUSED", "0+1x90"), requests("accepted", "0+1x90")),
    ],
    "GatewaySilent": [
        Case(
            requests("accepted", f"0+1x{8 * DAY - 8} {8 * DAY - 8}x20"),
            requests("accepted", f"0+1x{9 * DAY}"),
            at="8d",
            step="15m",
        ),
        Case(  # a route that never has anything at this time of the day
            requests("accepted", f"0+1x{8 * DAY - 8} {8 * DAY - 8}x20"),
            requests("accepted", f"0x{9 * DAY}"),
            at="8d",
            step="15m",
        ),
    ],
    "GatewayUnverified": [counter("gateway_unverified_total", labels='route="stripe"')],
    "GatewayTokenGuessed": [
        counter("gateway_admin_refused_total", good="0+1x90", bad="0+30x90"),
        Case(
            {f'gateway_admin_refused_total{{{SERVE},outcome="UNAUTHORIZED"}}': "0+30x90"},
            {f'gateway_admin_refused_total{{{SERVE},outcome="NO_TOKEN"}}': "0+30x90"},
        ),
    ],
    "GatewayReloadRefused": [
        counter("gateway_reloads_total", labels=f'{SERVE},outcome="refused"'),
        Case(
            {f'gateway_reloads_total{{{SERVE},outcome="refused"}}': "0x55 1x20"},
            {f'gateway_reloads_total{{{SERVE},outcome="done"}}': "0+1x90"},
        ),
    ],
    "GatewayLedgerAway": [gauge("gateway_ledger_up", "0x90", "1x90")],
    "GatewayConnectionsFull": [
        Case(
            {"gateway_ledger_connections": "95x90", "gateway_ledger_max_connections": "100x90"},
            {"gateway_ledger_connections": "50x90", "gateway_ledger_max_connections": "100x90"},
        )
    ],
    "GatewayRedisAway": [gauge("gateway_redis_up", "0x90", "1x50 0x5 1x90")],
    "GatewaySpooling": [gauge("gateway_spool_oldest_seconds", "0+60x90", "30x90")],
    "GatewaySpoolDamaged": [counter("gateway_spool_damaged_total")],
    "GatewayEventLoopBusy": [gauge("gateway_event_loop_lag_seconds", "5x90", "0.2x90")],
    "GatewayVersionsDiffer": [
        Case(
            {build("1", "g1"): "1x240", build("2", "g2"): "1x240"},
            {build("1", "g1"): "1x240", build("1", "g2"): "1x240"},
            at="3h",
        ),
        Case(  # two gateways, each of its own version
            {build("1", "g1"): "1x240", build("2", "g2"): "1x240"},
            {
                build("1", "g1", namespace="b"): "1x240",
                build("2", "g2", namespace="c"): "1x240",
            },
            at="3h",
        ),
    ],
    "GatewayNoWorker": [gauge("gateway_workers", "0x90", "3x90")],
    "GatewayBacklogOld": [
        Case({OLDEST: "0+60x90"}, {OLDEST: "20x90"}),
        Case({OLDEST: "900x90"}, {OLDEST: "900x90", f"gateway_paused{{{PLACE}}}": "1x90"}),
        Case(
            {OLDEST: "900x90", 'gateway_paused{route="github",handler=""}': "1x90"},
            {OLDEST: "900x90", 'gateway_paused{route="stripe",handler=""}': "1x90"},
        ),
        Case({OLDEST: "900x90"}, {OLDEST: "900x90", f"gateway_orphaned{{{PLACE}}}": "1x90"}),
    ],
    "GatewayOrphaned": [gauge("gateway_orphaned", "1x90", "1x50 _x40", labels=PLACE)],
    "GatewayPausedLong": [
        Case(
            {f"gateway_paused{{{PLACE}}}": f"1x{2 * DAY}"},
            {f"gateway_paused{{{PLACE}}}": "1x80 _x40"},
            at="30h",
            step="15m",
        )
    ],
    "GatewayDying": [
        counter("gateway_dead_letters_total", good="0+1x90", bad="0+50x90", labels=PLACE)
    ],
    "GatewayUnknownEffects": [gauge("gateway_unknown_effects", "3x90", "0x90", PLACE)],
    "GatewayDeadLetters": [gauge("gateway_dead_deliveries", "3x90", "0x90", PLACE, "70m")],
    "GatewayFailing": [
        Case(attempts("0+1x90", "0+5x90"), attempts("0+5x90", "0+1x90")),
        Case(attempts("0x90", "0+1x90"), attempts("0x90", "0x58 3x30")),
    ],
    "GatewayNearMisses": [
        counter("gateway_repairs_total", good="0x50 3x60", labels=f'{SERVE},kind="{kind}"')
        for kinds in REPAIRS.values()
        for kind in kinds
    ],
    "GatewayReconcileFailed": [
        gauge("gateway_reconcile_failed", "1x90", "0x90", 'route="stripe"', "70m")
    ],
    "GatewayGapsUnrecoverable": [
        Case({GAPS: "2x100 5x100"}, {GAPS: "5x100 5x100"}, "2h"),
        Case({GAPS: "_x100 5x100"}, {GAPS: "5x100 2x100"}, "2h"),
    ],
    "GatewayAlertsUnheard": [gauge("gateway_alerts_unheard", "1x90", "0x90")],
}


def test_every_alert_has_cases() -> None:
    assert {rule["alert"] for rule in rules()} == CASES.keys()


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    checked = promtool("check", "rules", str(ALERTS))
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


def test_promtool_finds_nothing_wrong_with_the_example_of_scraping() -> None:
    checked = promtool("check", "config", "--syntax-only", str(SCRAPING))
    assert checked.returncode == 0, checked.stderr


def _firing(alert: str, case: Case, series: Series, n: int | None) -> dict[str, Any]:
    expected = [] if n is None else [{"labels": f'{{alertname="{alert}"}}', "value": n}]
    asked = f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{alert}"}})'
    return {
        "interval": case.step,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": asked, "eval_time": case.at, "exp_samples": expected}],
    }


def _in(namespace: str, series: Series) -> Series:
    """The same, told by one gateway of several that a Prometheus scrapes."""
    return {told_in(namespace, name): values for name, values in series.items()}


def _write_tests(directory: Path, rule: Rule) -> Path:
    """Of one alert alone: promtool evaluates every rule that it is given, all of the time."""
    alert, cases = rule["alert"], CASES[rule["alert"]]
    alone, file = directory / f"{alert}.yaml", directory / f"{alert}.test.yaml"
    groups = {"groups": [{"name": "alone", "rules": [rule]}]}
    alone.write_text(yaml.safe_dump(groups), encoding="utf-8")
    document = {
        "rule_files": [alone.name],
        "evaluation_interval": cases[0].step,
        "tests": [
            group
            for case in cases
            for group in (
                _firing(alert, case, case.bad, 1),
                _firing(alert, case, case.good, None),
                _firing(
                    alert,
                    case,
                    _in("a", case.bad) | _in("b", case.good),
                    1 if case.beside else None,
                ),
                _firing(alert, case, _in("a", case.good) | _in("b", case.good), None),
            )
        ],
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def test_each_alert_fires_where_it_should_and_only_there(tmp_path: Path) -> None:
    files = [str(_write_tests(tmp_path, rule)) for rule in rules()]
    tested = promtool("test", "rules", *files)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_where_to_look(rule: Rule) -> None:
    told = rule["annotations"]
    assert told.keys() == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    page, _, place = told["runbook"].partition("#")
    file = DOCS.parent / page
    assert file.exists()
    assert not place or place in headings(file)
    labels = set(re.findall(r"\$labels\.(\w+)", told["summary"]))
    assert labels <= set(re.findall(r"\w+", rule["expr"])) | {"instance", "job"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_what_every_process_tells_of_the_ledger_is_not_added_up(rule: Rule) -> None:
    for name in metrics_in(rule["expr"]) & _of_the_ledger():
        assert not re.search(rf"sum[^()]*\({name}", rule["expr"])


def _of_the_ledger() -> set[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## What the ledger holds")[2]
    return set(re.findall(r"^\| `(gateway_\w+)`", section.partition("\n## ")[0], re.MULTILINE))


def test_the_page_says_what_the_rules_say() -> None:
    assert written(PAGE.read_text(encoding="utf-8")) == render(), (
        "write it anew: python -m tests.support.watching"
    )
