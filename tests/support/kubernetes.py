"""What kustomize makes of deploy/kubernetes, as people apply it."""

import subprocess
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.base.units import parse_size
from gateway.config.settings import Settings, load_settings
from tests.support.needs import program
from tests.support.waiting import PATIENCE_S
from tests.tools import find

PROJECT: Final = Path(__file__).parents[2]
KUBERNETES: Final = PROJECT / "deploy" / "kubernetes"
APPLIED: Final = ("migrate", "spool", "stateless")
OVERLAYS: Final = ("spool", "stateless")

Object = dict[str, Any]


def renderer() -> list[str]:
    """Return the command that renders a kustomization: kustomize alone, or inside kubectl."""
    if kustomize := find("kustomize"):
        return [kustomize, "build"]
    return [program("kubectl"), "kustomize"]


@cache
def _rendered(directory: Path) -> list[Object]:
    done = subprocess.run(
        [*renderer(), str(directory)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def render(directory: Path) -> list[Object]:
    """The objects of a kustomization, to do with as one likes."""
    return deepcopy(_rendered(directory))


class Cluster:
    """The objects that one of the kustomizations makes, or those that are given."""

    def __init__(self, name: str = "", *, objects: list[Object] | None = None) -> None:
        self.name = name
        self.objects = objects or render(KUBERNETES / name)

    def of(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def one(self, kind: str, name: str) -> Object:
        [found] = [item for item in self.of(kind) if item["metadata"]["name"] == name]
        return found

    @property
    def workloads(self) -> dict[str, Object]:
        """What starts pods, by what it is: `serve`, `worker`, `migrate`."""
        return {
            item["metadata"]["labels"]["app.kubernetes.io/component"]: item
            for item in self.of("Deployment", "StatefulSet", "Job")
        }

    def pod(self, component: str) -> Object:
        found: Object = self.workloads[component]["spec"]["template"]["spec"]
        return found

    def labels(self, component: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.workloads[component]["spec"]["template"]["metadata"][
            "labels"
        ]
        return found

    def container(self, component: str) -> Object:
        [found] = self.pod(component)["containers"]
        assert isinstance(found, dict)
        return found

    def plain(self, component: str) -> dict[str, str]:
        """The variables whose values stand in the manifests."""
        container = self.container(component)
        given = {}
        for source in container.get("envFrom", ()):
            given.update(self.one("ConfigMap", source["configMapRef"]["name"])["data"])
        given.update({v["name"]: v["value"] for v in container["env"] if "value" in v})
        return given

    def referred(self, component: str) -> dict[str, Object]:
        """The variables whose values are taken from a Secret, and from where."""
        return {
            variable["name"]: variable["valueFrom"]["secretKeyRef"]
            for variable in self.container(component)["env"]
            if "valueFrom" in variable
        }

    def settings(self, component: str) -> Settings:
        """What the process reads, with made-up values for what it gets by reference."""
        urls = {
            "GATEWAY_DATABASE_URL": "postgresql://somebody@db/app",
            "GATEWAY_REDIS_URL": "redis://redis",
        }
        environ = {name: urls.get(name, "t" * 32) for name in self.referred(component)}
        return load_settings(environ | self.plain(component))

    def port(self, component: str, name: str) -> int:
        [found] = [p for p in self.container(component)["ports"] if p["name"] == name]
        number: int = found["containerPort"]
        return number

    def probes(self, component: str) -> dict[str, Object]:
        container = self.container(component)
        return {kind: container[kind] for kind in container if kind.endswith("Probe")}


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector means what has these labels."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", ())
    assert all(expression["operator"] == "In" for expression in expressions)
    return wanted.items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def quantity(text: str) -> int:
    """Bytes of a quantity such as 768Mi."""
    return parse_size(f"{text}B")


def resource_files() -> Iterator[Path]:
    """The files that hold whole objects of Kubernetes' own."""
    for kustomization in sorted(KUBERNETES.glob("*/kustomization.yaml")):
        document = yaml.safe_load(kustomization.read_text(encoding="utf-8"))
        for name in document.get("resources", ()):
            file = kustomization.parent / name
            if file.is_file():
                yield file
