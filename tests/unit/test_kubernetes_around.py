"""What stands around the pods of deploy/kubernetes leads to them, and to nothing else."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.routes import load_config
from tests.support.kubernetes import (
    KUBERNETES,
    OVERLAYS,
    PROJECT,
    Cluster,
    Object,
    quantity,
    render,
    selects,
)


@pytest.fixture(params=OVERLAYS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return Cluster(request.param)


def test_serve_answers_until_everybody_knows_that_it_stops(cluster: Cluster) -> None:
    probe = cluster.probes("serve")["readinessProbe"]
    noticed_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert probe["httpGet"]["path"] == "/readyz"
    assert cluster.settings("serve").linger.total_seconds() >= 2 * noticed_s


def test_services_lead_to_serve_and_to_a_port_that_it_has(cluster: Cluster) -> None:
    services = cluster.of("Service")
    assert services
    for service in services:
        selector = {"matchLabels": service["spec"]["selector"]}
        assert selects(selector, cluster.labels("serve"))
        assert not selects(selector, cluster.labels("worker"))
        [port] = service["spec"]["ports"]
        assert port["port"] == cluster.port("serve", port["targetPort"])


def test_the_stateful_set_has_its_headless_service() -> None:
    cluster = Cluster("spool")
    name = cluster.workloads["serve"]["spec"]["serviceName"]
    assert cluster.one("Service", name)["spec"]["clusterIP"] == "None"


def test_budgets_and_autoscalers_are_there_for_each_and_mean_it(cluster: Cluster) -> None:
    for component in ("serve", "worker"):
        budget = cluster.one("PodDisruptionBudget", f"gateway-{component}")
        assert budget["spec"]["selector"]["matchLabels"] == cluster.labels(component)
        scaler = cluster.one("HorizontalPodAutoscaler", f"gateway-{component}")
        workload = cluster.workloads[component]
        assert scaler["spec"]["scaleTargetRef"] == {
            "apiVersion": workload["apiVersion"],
            "kind": workload["kind"],
            "name": workload["metadata"]["name"],
        }
        assert "replicas" not in workload["spec"], "an upgrade would take the autoscaler's back"
        # With one alone, a budget of one that may be away is no budget.
        assert scaler["spec"]["minReplicas"] > budget["spec"]["maxUnavailable"]


def test_no_disk_of_a_spool_is_left_behind_by_the_autoscaler() -> None:
    cluster = Cluster("spool")
    behavior = cluster.one("HorizontalPodAutoscaler", "gateway-serve")["spec"]["behavior"]
    assert behavior["scaleDown"] == {"selectPolicy": "Disabled"}
    spec = cluster.workloads["serve"]["spec"]
    kept = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["persistentVolumeClaimRetentionPolicy"] == kept


def test_senders_get_to_every_route_and_to_nothing_else(cluster: Cluster) -> None:
    [ingress] = cluster.of("Ingress")
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert path["pathType"] == "Prefix"
    config = load_config(PROJECT / "config" / "routes.yaml")
    assert all(route.path.startswith(f"{path['path']}/") for route in config.routes)
    for ours in ("/console", "/api/v1/status", "/metrics", "/readyz"):
        assert not ours.startswith(path["path"])
    service = cluster.one("Service", path["backend"]["service"]["name"])
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert path["backend"]["service"]["port"]["name"] in ports
    assert [tls["hosts"] for tls in ingress["spec"]["tls"]] == [[rule["host"]]]
    assert cluster.plain("serve")["GATEWAY_PUBLIC_URL"] == f"https://{rule['host']}"


def test_the_ingress_refuses_no_body_that_the_gateway_takes(cluster: Cluster) -> None:
    [ingress] = cluster.of("Ingress")
    config = load_config(PROJECT / "config" / "routes.yaml")
    largest = max(route.max_body for route in config.routes)
    sizes = ingress["metadata"]["annotations"].values()
    assert sizes
    assert all(quantity(f"{size.upper()}i") > largest for size in sizes)


def _policies(cluster: Cluster, component: str, direction: str) -> Iterator[Any]:
    """The rules that hold for the pods of a component."""
    for policy in cluster.of("NetworkPolicy"):
        spec = policy["spec"]
        if direction in spec["policyTypes"] and selects(
            spec["podSelector"], cluster.labels(component)
        ):
            yield from spec.get(direction.lower(), ())


def _targets(rules: Iterator[Any]) -> set[int | str]:
    return {port["port"] for rule in rules for port in rule["ports"]}


def test_the_network_is_closed_but_for_what_is_listed(cluster: Cluster) -> None:
    closed = cluster.one("NetworkPolicy", "gateway-closed")["spec"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert _targets(_policies(cluster, "serve", "Ingress")) == {"http"}
    assert _targets(_policies(cluster, "worker", "Ingress")) == {"probes"}
    ledger, redis = {53, 5432, 6432}, {6379, 26379}
    assert _targets(_policies(cluster, "serve", "Egress")) == ledger | redis
    assert _targets(_policies(cluster, "worker", "Egress")) == ledger | redis | {443}
    migrate = Cluster("migrate")
    assert _targets(_policies(migrate, "migrate", "Egress")) == ledger
    assert not list(_policies(migrate, "migrate", "Ingress"))


def test_whoever_comes_in_comes_from_a_namespace_that_is_named(cluster: Cluster) -> None:
    for component in ("serve", "worker"):
        for rule in _policies(cluster, component, "Ingress"):
            assert rule["from"]
            for peer in rule["from"]:
                assert peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]


def test_handlers_reach_the_internet_and_not_the_clouds_credentials(cluster: Cluster) -> None:
    [rule] = [r for r in _policies(cluster, "worker", "Egress") if {443} == _targets(iter([r]))]
    [everywhere, everywhere_6] = [peer["ipBlock"] for peer in rule["to"]]
    assert everywhere["cidr"] == "0.0.0.0/0"
    assert "169.254.0.0/16" in everywhere["except"]
    assert everywhere_6["cidr"] == "::/0"
    assert "fe80::/10" in everywhere_6["except"]


def _with_component(directory: Path, overlay: str, component: str) -> list[Object]:
    """What an overlay makes with another component, added as its own comment says."""
    shutil.copytree(PROJECT / "config", directory / "config")
    shutil.copytree(KUBERNETES, directory / "deploy" / "kubernetes")
    file = directory / "deploy" / "kubernetes" / overlay / "kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("  - ../site", f"  - ../{component}\n  - ../site"), "utf-8")
    return render(file.parent)


def test_monitors_find_the_pods_their_ports_and_their_tokens(
    tmp_path: Path, cluster: Cluster
) -> None:
    made = _with_component(tmp_path, "spool", "monitoring")
    monitors = [item for item in made if item["kind"] == "PodMonitor"]
    assert [item["metadata"]["name"] for item in monitors] == ["gateway-serve", "gateway-worker"]
    for monitor in monitors:
        component = monitor["metadata"]["name"].removeprefix("gateway-")
        assert monitor["metadata"]["namespace"] == "webhook-gateway"
        assert monitor["spec"]["selector"]["matchLabels"] == cluster.labels(component)
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert cluster.port(component, endpoint["port"])
        assert endpoint["path"] == "/metrics"
        token = cluster.referred(component)["GATEWAY_METRICS_TOKEN"]
        assert endpoint["authorization"]["credentials"] == {k: token[k] for k in ("name", "key")}


def test_signing_secrets_can_be_files_that_serve_alone_may_read(
    tmp_path: Path, cluster: Cluster
) -> None:
    with_files = Cluster(objects=_with_component(tmp_path, cluster.name, "files"))
    pod, plain = with_files.pod("serve"), cluster.pod("serve")
    volumes = [volume for volume in pod["volumes"] if volume not in plain["volumes"]]
    secrets = {ref["name"] for ref in cluster.referred("serve").values()}
    [volume] = volumes
    assert volume["secret"]["secretName"] in secrets
    assert volume["secret"]["defaultMode"] == 0o440
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    [mount] = [m for m in with_files.container("serve")["volumeMounts"] if m["name"] == "signing"]
    assert mount["readOnly"]
    assert with_files.workloads["worker"] == cluster.workloads["worker"]
