"""The manifests under deploy/kubernetes are what Kubernetes takes, and fit the code."""

import re
import shutil
from pathlib import Path
from typing import Final

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import typer
import yaml
from typer.core import TyperGroup

from gateway.cli import app
from gateway.cli.processes import HURRY_S
from gateway.config.routes import load_config
from gateway.config.settings import VARIABLES, Settings
from tests.support.kubernetes import (
    APPLIED,
    KUBERNETES,
    OVERLAYS,
    PROJECT,
    Cluster,
    Object,
    quantity,
    render,
    resource_files,
    selects,
)

OLDEST: Final = "1.27"
"""The first with all that is used; docs/kubernetes.md says so."""

NEWEST: Final = "1.37"
MIB: Final = 1024**2
WORKER_BYTES: Final = 100 * MIB
"""What a worker takes without a delivery."""

LARGEST_BODY: Final = 25 * MIB
"""GitHub's."""

COPIES: Final = 4
"""Of a body: received, decoded, read by its handler, and not yet returned by malloc."""

FOREIGN: Final = "monitoring.coreos.com/v1"
"""The Prometheus operator's: its schema is in its own cluster, not in Kubernetes'."""

PODS: Final = [
    *[(overlay, component) for overlay in OVERLAYS for component in ("serve", "worker")],
    ("migrate", "migrate"),
]
DAEMONS: Final = [pod for pod in PODS if pod[1] != "migrate"]


@pytest.fixture(params=OVERLAYS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return Cluster(request.param)


def _check(item: Object, version: str) -> None:
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        place = ".".join(str(step) for step in error.path)
        pytest.fail(f"{item['kind']} {item['metadata']['name']}: {place}: {error.message}")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", [*resource_files()], ids=lambda f: str(f.relative_to(KUBERNETES)))
def test_what_is_written_is_what_the_api_takes(file: Path, version: str) -> None:
    for item in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        if item["apiVersion"] != FOREIGN:
            _check(item, version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_what_is_applied_is_what_the_api_takes(version: str) -> None:
    different = {str(item): item for name in APPLIED for item in Cluster(name).objects}
    for item in different.values():
        _check(item, version)


def test_a_field_that_the_api_does_not_have_is_refused() -> None:
    policy: Object = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "one"},
        "spec": {"maxUnavailible": 1},
    }
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailible"):
        kubernetes_validate.validate(policy, NEWEST, strict=True)


def test_every_file_is_used() -> None:
    used = {(KUBERNETES / "monitoring" / "adapter.yaml").resolve()}  # Helm's, not kustomize's
    for kustomization in KUBERNETES.glob("*/kustomization.yaml"):
        used.add(kustomization.resolve())
        document = yaml.safe_load(kustomization.read_text(encoding="utf-8"))
        names = [*document.get("resources", ()), *document.get("components", ())]
        names += [patch["path"] for patch in document.get("patches", ()) if "path" in patch]
        used |= {(kustomization.parent / name).resolve() for name in names}
    files = {file.resolve() for file in KUBERNETES.rglob("*") if file.is_file()}
    assert files - used == set()


@pytest.mark.parametrize("name", APPLIED)
def test_everything_has_a_name_of_its_own_in_one_namespace(name: str) -> None:
    objects = Cluster(name).objects
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    namespaces = {
        item["metadata"]["name" if item["kind"] == "Namespace" else "namespace"] for item in objects
    }
    assert namespaces == {"webhook-gateway"}


def test_both_kinds_of_serve_are_one_but_for_the_disk() -> None:
    spool, stateless = Cluster("spool"), Cluster("stateless")
    assert spool.workloads["serve"]["kind"] == "StatefulSet"
    assert stateless.workloads["serve"]["kind"] == "Deployment"
    theirs = spool.pod("serve"), stateless.pod("serve")
    disk = {"spool", "GATEWAY_DATA_DIR", "GATEWAY_SPOOL_SIZE"}
    for pod in theirs:
        [container] = pod["containers"]
        for kind in ("env", "volumeMounts"):
            container[kind] = [item for item in container[kind] if item["name"] not in disk]
    assert theirs[0] == theirs[1]
    assert spool.workloads["worker"] == stateless.workloads["worker"]


@pytest.mark.parametrize(("name", "component"), PODS)
def test_pods_run_commands_that_exist(name: str, component: str) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    container = Cluster(name).container(component)
    assert container["command"] == ["gateway", component]
    assert "args" not in container
    assert component in group.commands


@pytest.mark.parametrize(("name", "component"), PODS)
def test_settings_exist_and_are_taken(name: str, component: str) -> None:
    cluster = Cluster(name)
    given = {*cluster.plain(component), *cluster.referred(component)}
    ours = {variable for variable in given if variable.startswith("GATEWAY_")}
    assert "GATEWAY_DATABASE_URL" in ours
    assert ours <= VARIABLES.keys()
    assert cluster.settings(component).database_url is not None


@pytest.mark.parametrize(("name", "component"), PODS)
def test_no_secret_stands_in_the_manifests(name: str, component: str) -> None:
    cluster = Cluster(name)
    assert not cluster.of("Secret")
    secret = {
        variable
        for variable, field in VARIABLES.items()
        if "SecretStr" in str(Settings.model_fields[field].annotation)
    }
    assert {"GATEWAY_DATABASE_URL", "GATEWAY_ADMIN_TOKEN"} <= secret
    assert not secret & cluster.plain(component).keys()
    for variable in cluster.plain(component):
        assert variable.startswith("GATEWAY_"), f"{variable} is not a setting: by reference only"


def test_serve_gets_every_secret_of_the_routes_and_the_others_none(cluster: Cluster) -> None:
    config = load_config(PROJECT / "config" / "routes.yaml")
    secrets = {ref.target for route in config.routes for ref in route.secrets if ref.kind == "env"}
    assert secrets
    assert secrets <= cluster.referred("serve").keys()
    assert not secrets & cluster.referred("worker").keys()
    assert not secrets & Cluster("migrate").referred("migrate").keys()


def test_each_process_has_a_database_url_of_its_own(cluster: Cluster) -> None:
    """So that each has its role, and none can read another's."""
    urls = {
        component: among.referred(component)["GATEWAY_DATABASE_URL"]["name"]
        for component, among in (
            ("serve", cluster),
            ("worker", cluster),
            ("migrate", Cluster("migrate")),
        )
    }
    assert urls == {name: f"gateway-{name}" for name in ("serve", "worker", "migrate")}


def test_processes_may_end_before_they_are_killed(cluster: Cluster) -> None:
    serve, worker = cluster.settings("serve"), cluster.settings("worker")
    given_s = cluster.pod("serve")["terminationGracePeriodSeconds"]
    assert given_s > (serve.linger + serve.grace).total_seconds()
    given_s = cluster.pod("worker")["terminationGracePeriodSeconds"]
    assert given_s > worker.grace.total_seconds() + HURRY_S


@pytest.mark.parametrize(("name", "component"), DAEMONS)
def test_ports_are_those_that_the_process_listens_on(name: str, component: str) -> None:
    cluster = Cluster(name)
    settings = cluster.settings(component)
    listens = {"serve": settings.port, "worker": settings.worker_port}[component]
    [port] = cluster.container(component)["ports"]
    assert port["containerPort"] == listens
    assert settings.host == "0.0.0.0"  # noqa: S104 (a pod's own)
    for probe in cluster.probes(component).values():
        assert cluster.port(component, probe["httpGet"]["port"]) == listens
    assert cluster.probes(component).keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
    assert cluster.probes(component)["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize(("name", "component"), PODS)
def test_selectors_mean_their_own_pods(name: str, component: str) -> None:
    cluster = Cluster(name)
    spec, labels = cluster.workloads[component]["spec"], cluster.labels(component)
    if component != "migrate":
        assert selects(spec["selector"], labels)
        assert spec["selector"]["matchLabels"] == labels
    for constraint in cluster.pod(component).get("topologySpreadConstraints", ()):
        assert constraint["labelSelector"]["matchLabels"] == labels


def test_the_spool_stands_on_its_disk_and_fits_on_it() -> None:
    cluster = Cluster("spool")
    settings = cluster.settings("serve")
    mounts = {m["name"]: m for m in cluster.container("serve")["volumeMounts"]}
    [claim] = cluster.workloads["serve"]["spec"]["volumeClaimTemplates"]
    assert mounts[claim["metadata"]["name"]]["mountPath"] == str(settings.data_dir)
    assert not mounts[claim["metadata"]["name"]].get("readOnly")
    disk = quantity(claim["spec"]["resources"]["requests"]["storage"])
    assert 0 < settings.spool_size < disk


def test_without_a_disk_there_is_no_spool() -> None:
    cluster = Cluster("stateless")
    assert cluster.settings("serve").spool_size == 0
    for mount in cluster.container("serve")["volumeMounts"]:
        assert mount["readOnly"]


def test_memory_has_room_for_what_is_buffered(cluster: Cluster) -> None:
    limit = quantity(cluster.container("serve")["resources"]["limits"]["memory"])
    assert limit >= 2 * cluster.settings("serve").max_buffered


def test_the_memory_of_a_worker_has_room_for_what_it_leases(cluster: Cluster) -> None:
    limit = quantity(cluster.container("worker")["resources"]["limits"]["memory"])
    leased = cluster.settings("worker").max_leased
    assert limit >= WORKER_BYTES + COPIES * (leased + LARGEST_BODY)


@pytest.mark.parametrize(("name", "component"), PODS)
def test_pods_may_do_nothing_that_they_need_not(name: str, component: str) -> None:
    pod, container = Cluster(name).pod(component), Cluster(name).container(component)
    context = pod["securityContext"]
    dockerfile = (PROJECT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    [uid] = re.findall(r"--uid (\d+)", dockerfile)
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == int(uid)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    assert container["resources"].keys() == {"requests", "limits"}


@pytest.mark.parametrize(("name", "component"), PODS)
def test_what_pods_name_is_there(name: str, component: str) -> None:
    cluster = Cluster(name)
    pod = cluster.pod(component)
    cluster.one("ServiceAccount", pod["serviceAccountName"])
    for volume in pod["volumes"]:
        if "configMap" in volume:
            cluster.one("ConfigMap", volume["configMap"]["name"])
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = cluster.workloads[component]["spec"].get("volumeClaimTemplates", ())
    volumes |= {claim["metadata"]["name"] for claim in claims}
    assert {m["name"] for m in cluster.container(component)["volumeMounts"]} == volumes


@pytest.mark.parametrize(("name", "component"), PODS)
def test_names_of_services_do_not_become_settings(name: str, component: str) -> None:
    """Of a Service `gateway-serve`, Kubernetes makes GATEWAY_SERVE_PORT and more: unknown ones."""
    assert Cluster(name).pod(component)["enableServiceLinks"] is False


@pytest.mark.parametrize(("name", "component"), PODS)
def test_the_routes_are_where_the_image_has_them(name: str, component: str) -> None:
    cluster = Cluster(name)
    dockerfile = (PROJECT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    [home] = re.findall(r"^WORKDIR (/app)$", dockerfile, flags=re.MULTILINE)
    [volume] = [v for v in cluster.pod(component)["volumes"] if v["name"] == "routes"]
    [mount] = [m for m in cluster.container(component)["volumeMounts"] if m["name"] == "routes"]
    data = cluster.one("ConfigMap", volume["configMap"]["name"])["data"]
    config = cluster.settings(component).config
    assert Path(mount["mountPath"]) == Path(home) / config.parent
    assert data == {config.name: (PROJECT / config).read_text(encoding="utf-8")}


def test_changed_routes_are_a_new_config_map(tmp_path: Path) -> None:
    """Its name is in the pods, so that the change is rolled out, and can be rolled back."""
    names = {_name_of_routes(tmp_path / text, text) for text in ("one", "two")}
    assert len(names) == 2


def _name_of_routes(project: Path, text: str) -> str:
    shutil.copytree(PROJECT / "config", project / "config")
    (project / "config" / "routes.yaml").write_text(text, encoding="utf-8")
    overlay = project / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text("components: [../config]\n", encoding="utf-8")
    [config_map] = render(overlay)
    name: str = config_map["metadata"]["name"]
    return name


@pytest.mark.parametrize("name", APPLIED)
def test_everything_runs_one_image_of_a_known_version(name: str) -> None:
    cluster = Cluster(name)
    [image] = {cluster.container(component)["image"] for component in cluster.workloads}
    site = yaml.safe_load((KUBERNETES / "site" / "kustomization.yaml").read_text(encoding="utf-8"))
    [entry] = site["images"]
    assert image == f"{entry['newName']}:{entry['newTag']}"
    assert entry["newTag"] not in {"", "latest"}
