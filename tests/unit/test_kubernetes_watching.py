"""What the Prometheus operator reads: its monitors, and the alert rules as one of its objects."""

import re
import subprocess
from collections.abc import Mapping
from typing import Any, Final

import jsonschema
import pytest
import yaml

from tests.support.kubernetes import KUBERNETES, PROJECT, Object
from tests.support.prometheus import ALERTS, SCRAPING, rules

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string", "minLength": 1}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
LASTING: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}


def _closed(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """An object in which nothing else may stand: the API server would drop it in silence."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def _object(spec: Schema) -> Schema:
    named = _closed({"name": TEXT}, namespace=TEXT, labels=TEXTS)
    return _closed({"apiVersion": TEXT, "kind": TEXT, "metadata": named, "spec": spec})


# https://prometheus-operator.dev/docs/api-reference/api/, of what we have a use for
_CREDENTIALS: Final = _closed({"credentials": _closed({"name": TEXT, "key": TEXT})})
_ENDPOINT: Final = _closed(
    {"port": TEXT}, path=TEXT, interval=LASTING, scrapeTimeout=LASTING, authorization=_CREDENTIALS
)
_RULE: Final = _closed(
    {"alert": TEXT, "expr": TEXT}, labels=TEXTS, annotations=TEXTS, **{"for": LASTING}
)
_GROUP: Final = _closed({"name": TEXT, "rules": {"type": "array", "items": _RULE}})
SCHEMAS: Final[dict[str, Schema]] = {
    "PodMonitor": _object(
        _closed(
            {
                "selector": _closed({"matchLabels": TEXTS}),
                "podMetricsEndpoints": {"type": "array", "items": _ENDPOINT, "minItems": 1},
            }
        )
    ),
    "PrometheusRule": _object(_closed({"groups": {"type": "array", "items": _GROUP}})),
}


def _check(item: Object) -> None:
    assert item["apiVersion"] == "monitoring.coreos.com/v1"
    jsonschema.validate(item, SCHEMAS[item["kind"]])


def _monitors() -> list[Object]:
    text = (KUBERNETES / "monitoring" / "monitors.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def _rule_object() -> Object:
    """Made by the command of the guide, up to where kubectl takes it."""
    guide = (PROJECT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^(\{ printf .+) \| kubectl apply --filename=-$", guide, re.MULTILINE)
    done = subprocess.run(
        ["sh", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    found: Object = yaml.safe_load(done.stdout)
    return found


def test_monitors_are_what_the_operator_takes() -> None:
    for item in _monitors():
        _check(item)


def test_the_guide_makes_an_object_of_all_alert_rules() -> None:
    made = _rule_object()
    _check(made)
    assert made["metadata"]["namespace"] == "webhook-gateway"
    assert made["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))


def test_a_field_that_the_operator_does_not_have_is_refused() -> None:
    [monitor, _] = _monitors()
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        _check(monitor)


def test_the_rules_find_the_jobs_of_the_monitors_and_of_the_example() -> None:
    """The operator names a job by the namespace and the name of its monitor."""
    [rule] = [rule for rule in rules() if rule["alert"] == "GatewayDown"]
    [pattern] = re.findall(r'job=~"([^"]+)"', rule["expr"])
    example = yaml.safe_load(SCRAPING.read_text(encoding="utf-8"))["scrape_configs"]
    jobs = [f"webhook-gateway/{item['metadata']['name']}" for item in _monitors()]
    jobs += [job["job_name"] for job in example]
    assert len(jobs) == 4
    assert [job for job in jobs if not re.fullmatch(pattern, job)] == []
    for job in example:
        assert all(target["labels"].keys() == {"namespace"} for target in job["static_configs"])
