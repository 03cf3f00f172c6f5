"""docs/kubernetes.md makes what the manifests refer to."""

import re
import shlex
import subprocess

import pytest

from gateway.ledger.budget import SERVE_CONNECTIONS, worker_connections
from tests.support.kubernetes import APPLIED, KUBERNETES, PROJECT, Cluster
from tests.support.needs import program


def _created() -> dict[str, list[str]]:
    """The commands of the guide that make secrets, by the secret's name."""
    guide = (PROJECT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ +(kubectl create secret .+)$", guide, flags=re.MULTILINE)
    return {words[4]: words for words in map(shlex.split, lines)}


def test_the_guide_makes_every_secret_that_is_referred_to_and_no_other() -> None:
    wanted: dict[str, set[str]] = {}
    for name in APPLIED:
        cluster = Cluster(name)
        for component in cluster.workloads:
            for reference in cluster.referred(component).values():
                wanted.setdefault(reference["name"], set()).add(reference["key"])
    created = _created()
    [ingress] = Cluster("spool").of("Ingress")
    assert created.pop(ingress["spec"]["tls"][0]["secretName"])[3] == "tls"
    keys = {
        name: set(re.findall(r"--from-literal=([a-z-]+)=", " ".join(words)))
        for name, words in created.items()
    }
    assert keys == wanted


@pytest.mark.parametrize("name", sorted(_created().keys() - {"gateway-tls"}))
def test_kubectl_takes_the_commands_that_make_secrets(name: str) -> None:
    _, *arguments = _created()[name]
    done = subprocess.run(
        [program("kubectl"), *arguments, "--dry-run=client", "--output=name"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"secret/{name}\n", done.stderr


def test_what_the_guide_names_is_there() -> None:
    guide = (PROJECT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    made = {
        (item["kind"].lower(), item["metadata"]["name"])
        for name in APPLIED
        for item in Cluster(name).objects
    }
    kinds = "|".join({kind for kind, _ in made})
    named = set(re.findall(rf"\b({kinds})/([a-z][a-z-]*)", guide))
    assert len(named) >= 4
    assert named <= made
    assert f"`spool-{Cluster('spool').workloads['serve']['metadata']['name']}-0`" in guide
    for path in re.findall(r"--(?:kustomize|filename) (\S+)", guide):
        assert (PROJECT / path).exists()
    for directory in re.findall(r"^\| `([a-z]+)/`", guide, flags=re.MULTILINE):
        assert (KUBERNETES / directory / "kustomization.yaml").is_file()


def test_the_guide_reckons_with_the_connections_of_all_replicas() -> None:
    guide = (PROJECT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    cluster = Cluster("spool")
    most = {
        name: cluster.one("HorizontalPodAutoscaler", f"gateway-{name}")["spec"]["maxReplicas"]
        for name in ("serve", "worker")
    }
    of_serve, of_worker = SERVE_CONNECTIONS, worker_connections(cluster.settings("worker"))
    total = most["serve"] * of_serve + most["worker"] * of_worker
    assert f"{most['serve']} x {of_serve} + {most['worker']} x {of_worker} = {total}" in guide
