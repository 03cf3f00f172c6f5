"""The pods' own commands with the manifests' own environment, on a root that cannot be written."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg
import httpx
import pytest

from gateway.providers.samples import make_sample
from gateway.receive.spool.spool import SPOOL_DIRECTORY
from tests.support.kubernetes import PROJECT, Cluster, Object
from tests.support.needs import lacks
from tests.support.ports import free_port
from tests.support.processes import (
    GITHUB_SECRET,
    STRIPE_SECRET,
    Project,
    Running,
    github_request,
)
from tests.support.waiting import PATIENCE_S, until

CONFINED: Final = """
set -e
mount -t tmpfs none /var/lib && mkdir /var/lib/gateway
if [ -n "$1" ]; then mount --bind "$1" /var/lib/gateway; else mount -o remount,ro /var/lib; fi
mount --bind . . && mount -o remount,bind,ro . && cd "$PWD"
mount -o remount,bind,ro /
if touch written 2>/dev/null; then echo "the root can be written"; exit 99; fi
shift
exec setpriv --bounding-set=-all,+dac_override --inh-caps=-all --no-new-privs "$@"
"""
"""As `readOnlyRootFilesystem`, with a disk, if any, at its place, and without capabilities, but for
the one without which root could not reach the suite's Postgres: its socket is another account's."""

PORTS: Final = {"serve": "GATEWAY_PORT", "worker": "GATEWAY_WORKER_PORT"}


class Pod(NamedTuple):
    """A container's process, and where it listens."""

    running: Running
    url: str
    probes: dict[str, Object]


class Pods:
    """The image's directory, and what starts the pods of one kustomization in it."""

    def __init__(self, directory: Path, database_url: str, redis_url: str) -> None:
        self._directory = directory
        self._logs = directory.with_name("logs")
        self._logs.mkdir()
        self._secrets = {
            "GATEWAY_DATABASE_URL": database_url,
            "GATEWAY_REDIS_URL": redis_url,
            "STRIPE_WEBHOOK_SECRET": STRIPE_SECRET,
            "GITHUB_WEBHOOK_SECRET": GITHUB_SECRET,
        }
        shutil.copytree(PROJECT / "handlers", directory / "handlers")

    @contextmanager
    def start(
        self, cluster: Cluster, component: str, *, disk: Path | None = None, **instead: str
    ) -> Iterator[Pod]:
        """The container's command, and its environment: only addresses are the test's own."""
        self._mount_routes(cluster, component)
        environ = {name: self._secrets.get(name, "t" * 32) for name in cluster.referred(component)}
        environ["PATH"] = os.environ["PATH"]
        port = free_port()
        if component in PORTS:
            instead |= {"GATEWAY_HOST": "127.0.0.1", PORTS[component]: str(port)}
        [program, *arguments] = cluster.container(component)["command"]
        log = self._logs / f"{component}-{port}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [
                    *("unshare", "--mount", "sh", "-c", CONFINED, "sh", str(disk or "")),
                    *(str(Path(sys.executable).with_name(program)), *arguments),
                ],
                cwd=self._directory,
                env=environ | cluster.plain(component) | instead,
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        running = Running(process, log)
        try:
            yield Pod(running, f"http://127.0.0.1:{port}", cluster.probes(component))
        finally:
            running.kill()  # as when a node is lost; it would linger otherwise

    def _mount_routes(self, cluster: Cluster, component: str) -> None:
        config = self._directory / "config"
        config.mkdir(exist_ok=True)
        [volume] = [v for v in cluster.pod(component)["volumes"] if v["name"] == "routes"]
        for name, text in cluster.one("ConfigMap", volume["configMap"]["name"])["data"].items():
            (config / name).write_text(text, encoding="utf-8")


@pytest.fixture
def pods(tmp_path: Path, empty_database_url: str, redis_url: str) -> Pods:
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    )
    if tried.returncode:
        lacks("root for mounts")
    directory = tmp_path / "app"
    directory.mkdir()
    return Pods(directory, empty_database_url, redis_url)


async def _probed(client: httpx.AsyncClient, pod: Pod) -> None:
    """Waits until every probe is answered as the kubelet wants it."""

    async def answered(path: str) -> bool:
        assert pod.running.process.poll() is None, pod.running.output
        try:
            return (await client.get(pod.url + path)).status_code == 200
        except httpx.TransportError:
            return False

    for probe in pod.probes.values():
        await until(partial(answered, probe["httpGet"]["path"]))


async def _is_done(database: asyncpg.Connection, event_id: str) -> bool:
    statement = "select status from gateway.deliveries where event_id = $1"
    return bool(await database.fetchval(statement, event_id) == "done")


async def _post_push(client: httpx.AsyncClient, pod: Pod, guid: str) -> None:
    push = make_sample("github", "push", now=datetime.now(UTC)).body
    body, headers = github_request(guid, "push", body=push)
    answer = await client.post(f"{pod.url}/webhooks/github", content=body, headers=headers)
    assert answer.json() == {"status": "accepted", "event_id": guid}


async def test_pods_start_answer_their_probes_do_their_work_and_end(
    pods: Pods, empty_database_url: str, tmp_path: Path
) -> None:
    """And what one of them had acknowledged on its disk is done after it came up elsewhere."""
    cluster = Cluster("spool")  # of the other, serve is the same but for the disk
    disk = tmp_path / "disk"
    disk.mkdir()
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    database = await asyncpg.connect(empty_database_url)
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        with (
            pods.start(Cluster("migrate"), "migrate") as migration,
            pods.start(cluster, "serve", disk=disk, GATEWAY_DATABASE_URL=nowhere) as lost,
        ):
            await _probed(client, lost)
            await _post_push(client, lost, "spooled")
            assert migration.running.process.wait(PATIENCE_S) == 0, migration.running.output
        assert list((disk / SPOOL_DIRECTORY).iterdir())
        with (
            pods.start(cluster, "serve", disk=disk) as serve,
            pods.start(cluster, "worker") as worker,
        ):
            for pod in (serve, worker):
                await _probed(client, pod)
            await _post_push(client, serve, "claimed")
            for guid in ("spooled", "claimed"):
                await until(partial(_is_done, database, guid))
            serve.running.process.send_signal(signal.SIGTERM)
            await serve.running.says("lingering")
            assert (await client.get(f"{serve.url}/readyz")).status_code == 503
            assert (await client.get(f"{serve.url}/healthz")).status_code == 200
            for pod in (serve, worker):  # a second signal ends the lingering
                pod.running.process.send_signal(signal.SIGTERM)
            assert [pod.running.process.wait(PATIENCE_S) for pod in (serve, worker)] == [0, 0]
    await database.close()


def test_settings_that_kubernetes_makes_of_a_service_would_be_refused(project: Project) -> None:
    """Why the pods have `enableServiceLinks: false`."""
    done = project.run("serve", GATEWAY_SERVE_PORT="tcp://10.0.0.7:8000")
    assert done.returncode == 2
    assert "GATEWAY_SERVE_PORT: found an unknown variable" in done.stderr
