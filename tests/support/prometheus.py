"""The real Prometheus and its promtool, and the files of deploy/ that are for it."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.support.needs import program
from tests.support.ports import free_port
from tests.support.processes import Project, Running
from tests.support.waiting import PATIENCE_S

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yaml"
SCRAPING: Final = DEPLOY / "prometheus" / "prometheus.yaml"
DASHBOARD: Final = DEPLOY / "grafana" / "gateway.json"
METRIC: Final = re.compile(r"\b(?:gateway|process)_[a-z_]+")
SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")

Rule = dict[str, Any]
Panel = dict[str, Any]


def rules() -> list[Rule]:
    """Every alert."""
    document = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def panels() -> list[Panel]:
    """Those that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """What the panels ask, as Grafana would with everything chosen of the only gateway."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], as_sent(target["expr"])


def as_sent(expression: str) -> str:
    filled = expression.replace("$__rate_interval", "5m").replace("$namespace", "")
    return re.sub(r"\$\{?(route|handler|instance)\}?", ".*", filled)


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression asks for: what is quoted or a label is none."""
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(METRIC.findall(bare))


def promtool(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool to its end."""
    command = [program("promtool"), *arguments]
    return subprocess.run(command, input=input, capture_output=True, text=True, timeout=PATIENCE_S)


@contextmanager
def scraping(project: Project, *urls: str) -> Iterator[tuple[str, Running]]:
    """A Prometheus of its own that scrapes these every half second, with our rules."""
    port = free_port()
    targets = [url.removeprefix("http://") for url in urls]
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "gateway-serve", "static_configs": [{"targets": targets}]}],
    }
    project.write("prometheus.yaml", yaml.safe_dump(config))
    command = [
        program("prometheus"),
        "--config.file=prometheus.yaml",
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.path=prometheus-data",
    ]
    with project.started(command) as running:
        yield f"http://127.0.0.1:{port}", running


async def ask(client: httpx.AsyncClient, expression: str) -> list[dict[str, Any]]:
    """What Prometheus answers now."""
    answer = await client.post("/api/v1/query", data={"query": expression})
    assert answer.status_code == httpx.codes.OK, f"{expression}: {answer.text}"
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found
