"""A secret is shown nowhere: known ones of every kind are fed in, and everything that the program
writes is searched for each of them."""

import base64
import json
import os
import signal
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.base.errors import ConfigInvalid
from gateway.config.project import load_project
from gateway.config.routes import load_config
from gateway.config.settings import load_settings
from gateway.dev.embedded import Postgres, Redis
from gateway.operations.health.configuration import check_configuration, check_credentials
from gateway.operations.health.findings import read_installation
from gateway.providers import PROVIDERS
from tests.support.forked import Death
from tests.support.in_process import in_project
from tests.support.leaks import (
    Watched,
    command_lines,
    descendants,
    dump_postgres,
    dump_redis,
    environment,
    files_below,
    is_private,
)
from tests.support.ports import free_port
from tests.support.processes import Project, Serving
from tests.support.receiver import answer, receiving
from tests.support.waiting import PATIENCE_S, until

AWAY: Final = "http://127.0.0.1:1"
ADDED: Final = {"AUTH_HEADER": "Bearer ", "WEBHOOK_URL": AWAY, "SLACK_URL": AWAY}


def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _sign_key(name: str) -> str:
    return "whsec_" + base64.b64encode(f"{name:.<32}".encode()).decode()


PRIVATE_KEY: Final = _private_key()
WATCHED: Final = Watched(
    STRIPE_SECRET="whsec_LEAK_stripe_9f2c41d7",
    OLD_SECRET="whsec_LEAK_old_5b1e77aa",
    EXPIRED_SECRET="whsec_LEAK_expired_0c55",
    file_secret="whsec_LEAK_file_c0ffee12",
    GITHUB_SECRET="LEAK github/+='é\" 31c0",
    BEARER_SECRET="LEAK-bearer-77aa10ff2e",
    BASIC_SECRET="leak:LEAK-basic-1d0c9be4",
    GITLAB_SECRET="LEAK-gitlab-token-52c1",
    JOBS_TOKEN="LEAK-jobs-token-83e1aa",
    GATEWAY_ADMIN_TOKEN="LEAK-admin-token-19d2ff",
    GATEWAY_METRICS_TOKEN="LEAK-metrics-token-6a0b",
    STRIPE_KEY="sk_test_LEAKapikey4410ce",
    HOOK_TOKEN="ghp_LEAKhooktoken77f01c",
    HOOK_KEY=PRIVATE_KEY.splitlines()[5],
    SIGN_KEY=_sign_key("LEAK-forward-sign"),
    AUTH_HEADER="LEAK-forward-header-66e0",
    FORWARD_PATH="LEAK-forward-url-7b21cd",
    ALERT_SIGN=_sign_key("LEAK-alert-sign"),
    WEBHOOK_URL="/LEAK-alert-hook-90aa1c",
    SLACK_URL="/services/LEAK-slack-4c4d",
    VERIFY_TOKEN="LEAK-verify-token-0d3e",
    PAYLOAD_KEY=os.urandom(32).hex(),
    DIGEST_KEY=os.urandom(32).hex(),
    database_password="LEAK-database-pw-2f81",
    redis_password="LEAK-redis-pw-8e1a20",
)
SECRETS: Final = WATCHED.secrets
ROUTES: Final = """
keys: [env:PAYLOAD_KEY]
digest_key: env:DIGEST_KEY
defaults:
  retry: {attempts: 2, backoff: fixed, base: 100ms, cap: 1s}
alerts:
  webhook: {url: env:WEBHOOK_URL, sign: env:ALERT_SIGN}
  slack: env:SLACK_URL
routes:
  stripe:
    provider: stripe
    secrets:
      - env:STRIPE_SECRET
      - file:secret.txt
      - {secret: env:OLD_SECRET, expires_at: 2999-01-01}
      - {secret: env:EXPIRED_SECRET, expires_at: 2020-01-01}
    api_key: env:STRIPE_KEY
    handlers: [handlers.effects]
    forward:
      - name: there
        url: env:FORWARD_URL
        sign: env:SIGN_KEY
        headers: {authorization: env:AUTH_HEADER}
  github:
    provider: github
    secrets: [env:GITHUB_SECRET]
    encrypt: true
    reconcile: {hook: repos/a/b/hooks/1, token: env:HOOK_TOKEN, api_url: "http://127.0.0.1:1"}
  app:
    provider: github
    secrets: [env:GITHUB_SECRET]
    reconcile: {hook: app, app_id: 1, private_key: env:HOOK_KEY, api_url: "http://127.0.0.1:1"}
  bearer:
    provider: bearer
    secrets: [env:BEARER_SECRET]
    scheme: {token: {at: header.authorization, prefix: "Bearer "}, id: [json.id], type: [json.type]}
  basic:
    provider: basic
    secrets: [env:BASIC_SECRET]
    scheme: {id: [json.id], type: [json.type]}
  gitlab:
    provider: gitlab
    secrets: [env:GITLAB_SECRET]
  meta:
    provider: meta
    secrets: [env:OLD_SECRET]
    verify_token: env:VERIFY_TOKEN
  jobs:
    provider: publish
    tokens: [env:JOBS_TOKEN]
    handlers: [handlers.effects]
"""
HANDLERS: Final = '''
"""One that fails where it is told to."""

from gateway import Context, Event, handler


@handler("*")
async def count(event: Event, ctx: Context) -> None:
    ctx.log.info("seen", seen=repr(event), by=repr(ctx), context=repr(vars(type(ctx))))
    raise RuntimeError(f"of {event!r} in {ctx!r}")
'''


def with_password(url: str, user: str, password: str) -> str:
    """The URL of an engine that asks for none, and takes any."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{quote(password, safe='')}@{rest.rpartition('@')[2]}"


@pytest.fixture
def project(module_project: Project) -> Project:
    environ = module_project.environ
    environ |= {
        name: ADDED.get(name, "") + text for name, text in SECRETS.items() if name.isupper()
    }
    environ["HOOK_KEY"] = PRIVATE_KEY.rstrip()
    environ["FORWARD_URL"] = f"{AWAY}/{SECRETS['FORWARD_PATH']}"
    if SECRETS["database_password"] not in environ["GATEWAY_DATABASE_URL"]:
        environ["GATEWAY_DATABASE_URL"] = with_password(
            environ["GATEWAY_DATABASE_URL"], "gateway", SECRETS["database_password"]
        )
    environ["GATEWAY_LOG_LEVEL"] = "debug"
    module_project.write("config/routes.yaml", ROUTES)
    module_project.write("handlers/effects.py", HANDLERS)
    secret = module_project.directory / "secret.txt"
    secret.touch(mode=0o600)
    secret.write_text(SECRETS["file_secret"])
    module_project.write("job.json", "{}")
    return module_project


def clean(written: str | bytes) -> bool:
    """No secret stands in it."""
    found = WATCHED.found_in(written)
    assert found == []
    return True


def test_the_search_finds_what_it_is_there_to_find() -> None:
    for name, secret in SECRETS.items():
        hidden = (
            f"a {secret} b",
            repr({"x": secret}),
            json.dumps({"x": secret}),
            quote(f"u:{secret}"),
            secret.encode().hex(),
            *(base64.b64encode(f"{'x' * n}{secret}".encode()).decode() for n in range(4)),
        )
        for written in hidden:
            assert name in WATCHED.found_in(written), (name, written)


def all_requests() -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """To each route: as it should be, and not quite."""
    run = uuid4().hex
    body = b'{"id":"evt_%d_' + run.encode() + b'","type":"push","object":"event",'
    body += b'"created":1,"livemode":false}'
    now = datetime.now(UTC)
    for number, (route, name) in enumerate(
        [
            ("stripe", "STRIPE_SECRET"),
            ("stripe", "file_secret"),
            ("stripe", "EXPIRED_SECRET"),
            ("github", "GITHUB_SECRET"),
            ("gitlab", "GITLAB_SECRET"),
            ("meta", "OLD_SECRET"),
        ]
    ):
        signed = PROVIDERS[route].sign(
            body % number,
            secret=SECRETS[name].encode(),
            id=f"{run}-{number}",
            type="push",
            now=now,
        )
        yield f"/webhooks/{route}", signed.body, signed.headers
        yield f"/webhooks/{route}", signed.body + b" ", signed.headers
    basic = base64.b64encode(SECRETS["BASIC_SECRET"].encode()).decode()
    for route, credential in (
        ("bearer", f"Bearer {SECRETS['BEARER_SECRET']}"),
        ("bearer", f"Bearer {SECRETS['BEARER_SECRET']}x"),
        ("basic", f"Basic {basic}"),
        ("basic", f"Basic {basic}x"),
    ):
        yield f"/webhooks/{route}", body % 77, {"authorization": credential}
    for token in (SECRETS["JOBS_TOKEN"], SECRETS["JOBS_TOKEN"] + "x"):
        headers = {"authorization": f"Bearer {token}"}
        yield "/v1/queues/jobs/jobs", b'{"payload":1}', headers
        yield "/v1/queues/jobs/jobs", b"not json", headers


async def talk(serving: Serving) -> bytes:
    """Asks for everything that can be asked for; the answers."""
    admin = {"authorization": f"Bearer {SECRETS['GATEWAY_ADMIN_TOKEN']}"}
    metrics = {"authorization": f"Bearer {SECRETS['GATEWAY_METRICS_TOKEN']}"}
    heard = []
    async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
        answers = [
            await client.post(path, content=body, headers=headers)
            for path, body, headers in all_requests()
        ]
        assert {200, 201, 400, 401, 403} <= {a.status_code for a in answers}
        query = {"hub.mode": "subscribe", "hub.challenge": "x"}
        for token in (SECRETS["VERIFY_TOKEN"], SECRETS["VERIFY_TOKEN"] + "x"):
            answers.append(
                await client.get("/webhooks/meta", params={**query, "hub.verify_token": token})
            )
        document = (await client.get("/api/v1/openapi.json", headers=admin)).json()
        paths = [path for path, methods in document["paths"].items() if "get" in methods]
        for path in [*paths, "/metrics", "/healthz", "/readyz", "/api/v1/nothing"]:
            for headers in (admin, metrics, {"authorization": admin["authorization"] + "x"}):
                where = path.replace("{", "").replace("}", "")
                answers.append(await client.get(where, headers=headers))
        heard = [a.content + repr(a.headers).encode() for a in answers]
    return b"\n".join([*heard, json.dumps(document).encode()])


@pytest.mark.parametrize("format", ["json", "console"])
async def test_processes_write_no_secret_anywhere(
    project: Project, redis_url: str, format: str
) -> None:
    sent = {name: SECRETS[name] for name in ("AUTH_HEADER", "FORWARD_PATH", "SIGN_KEY")}
    telling = answer(500, json.dumps(sent).encode(), x_told=SECRETS["AUTH_HEADER"])
    async with receiving(telling) as there:
        environ = {
            "GATEWAY_LOG_FORMAT": format,
            "GATEWAY_REDIS_URL": with_password(redis_url, "default", SECRETS["redis_password"]),
            "FORWARD_URL": f"{there.url}/{SECRETS['FORWARD_PATH']}?key={SECRETS['FORWARD_PATH']}",
        }
        with project.serve(**environ) as serving, project.process("worker", **environ) as worker:
            await serving.ready()
            assert clean(await talk(serving))
            await until(lambda: worker.output.count("delivery_dead") >= 2)
            assert there.requests
            if format == "json":
                try_commands(project, {**environ, "GATEWAY_PORT": serving.url.rpartition(":")[2]})
            for process in (serving.running.process, worker.process):
                process.send_signal(signal.SIGHUP)
            await serving.running.says("secrets_reloaded")
            (project.directory / "secret.txt").write_text(f"{SECRETS['file_secret']}\n\n")
            serving.running.process.send_signal(signal.SIGHUP)
            await serving.running.says("reload_refused")
            pids = [serving.running.process.pid, worker.process.pid]
            assert clean(command_lines(pid for top in pids for pid in descendants(top)))
        assert clean(serving.running.output)
        assert clean(worker.output)
        assert "Traceback" in worker.output or "RuntimeError" in worker.output
    assert clean(await dump_postgres(project.environ["GATEWAY_DATABASE_URL"]))
    assert clean(await dump_redis(redis_url))


COMMANDS: Final = (
    *(["check"], ["schema"], ["routes"], ["routes", "--json"], ["migrate"], ["providers"]),
    *(["status"], ["status", "--json"], ["doctor"], ["doctor", "--json"], ["events"], ["dead"]),
    *(["events", "--json"], ["dead", "--json"], ["audit"], ["bulk"], ["alerts", "--json"]),
    *(["alerts", "--test"], ["prune", "--dry-run"]),
    *(["reconcile", "github"], ["reconcile", "app"], ["send", "stripe", "invoice.paid"]),
    *(["publish", "jobs", "--payload", "job.json"], ["pause", "stripe"], ["resume", "stripe"]),
    *(["status", "--url", AWAY], ["events", "--url", AWAY], ["rejected"], ["rekey"]),
)


def try_commands(project: Project, environ: Mapping[str, str]) -> None:
    """None of them prints a secret, whatever becomes of it."""
    [event, *_] = json.loads(project.run("events", "--json", **environ).stdout)
    shown = (["show", event["event_id"]], ["show", event["event_id"], "--json"])
    for command in (*COMMANDS, *shown):
        result = project.run(*command, **environ)
        assert clean(result.stdout + result.stderr), command
        assert "Traceback" not in result.stderr, (command, result.stderr)


LITERALS: Final = (
    "secrets: [{}]",
    "secrets: [env:{}]",
    "secrets: {}",
    "secrets: [{{secret: {}}}]",
    "secrets: [{{secret: env:A, expires_at: {}}}]",
    "secrets: [{{{}: env:A}}]",
    "secrets: [env:A]\n    api_key: {}",
    "secrets: [env:A]\n    verify_token: {}",
    "secrets: [env:A]\n    token: {}",
    "secrets: [env:A]\n    forward: [{{name: a, url: 'http://u:{}@h/'}}]",
    "secrets: [env:A]\n    forward: [{{name: a, url: 'http://h/', sign: {}}}]",
    "secrets: [env:A]\n    forward: [{{name: a, url: 'http://h/', headers: {{cookie: {}}}}}]",
    "secrets: [env:A]\n    reconcile: {{token: {}}}",
    "secrets: [env:A]\n    reconcile: {{private_key: {}}}",
    "secrets: [env:A\n    {}",
    "secrets: [*{}]",
    "secrets: ['{}]",
    "secrets: [env:A]\nalerts: {{slack: {}}}",
    "secrets: [env:A]\nalerts: {{webhook: {}}}",
    "secrets: [env:A]\nalerts: {{webhook: {{url: 'http://h/', sign: {}}}}}",
    "secrets: [env:A]\nkeys: [{}]",
    "secrets: [env:A]\ndigest_key: {}",
)


def test_a_secret_in_the_place_of_its_reference_is_not_told(project: Project) -> None:
    """In this process: there are many of them."""
    file = project.directory / "config/routes.yaml"
    for literal in LITERALS:
        for name in ("STRIPE_SECRET", "STRIPE_KEY", "HOOK_TOKEN", "PAYLOAD_KEY", "VERIFY_TOKEN"):
            text = literal.format(SECRETS[name])
            file.write_text(f"routes:\n  one:\n    provider: stripe\n    {text}\n")
            with pytest.raises(ConfigInvalid) as refused:
                load_config(file)
            assert clean(str(refused.value) + repr(refused.value)), literal


TAKEN: Final = frozenset({"HOOK_KEY"})
"""What is found to be wrong only when it is used."""
BROKEN: Final = {
    "GATEWAY_DATABASE_URL": ("postgres//u:{}@h/d", "postgresql://u:{}@h:99999/d", "{}"),
    "GATEWAY_REDIS_URL": ("redis:/u:{}@h", "redis://u:{}@h:x/0", "redis://u:{}@127.0.0.1:1/zero"),
    "GATEWAY_ADMIN_TOKEN": ("{} x",),
    "GATEWAY_METRICS_TOKEN": ("{} x",),
    "GATEWAY_PUBLIC_URL": ("https://u:{}@h", "{}"),
    "GATEWAY_TEST_DATABASE_URL": ("{}",),
    "STRIPE_SECRET": (" {}", "{}\n"),
    "JOBS_TOKEN": ("{} x", "é{}"),
    "PAYLOAD_KEY": ("{}00", "zz{}"),
    "HOOK_KEY": ("{}",),
    "SIGN_KEY": ("whsec_{}!", "{}"),
    "FORWARD_URL": ("ftp://{}/", "http://u:{}@h/"),
    "AUTH_HEADER": ("{}\nx: y",),
    "SLACK_URL": ("{}", "http://u:{}@h/"),
    "WEBHOOK_URL": ("ftp://{}/",),
}


def all_told(environ: Mapping[str, str]) -> Iterator[str]:
    """What `check` and `doctor` say of settings, routes and secrets, and how their errors look."""
    try:
        load_project(load_settings(environ), environ=environ, with_secrets=True, with_api_keys=True)
    except ConfigInvalid as error:
        yield str(error) + repr(error) + "".join(traceback.format_exception(error))
    installation, findings = read_installation(environ)
    yield repr([*findings, *check_configuration(installation), *check_credentials(installation)])
    yield repr(installation)


def test_settings_and_secrets_that_are_wrong_are_not_quoted(project: Project) -> None:
    marker = "LEAK-broken-value-5d1c"
    watched = Watched(**SECRETS, broken=marker)
    with in_project(project.directory):
        for name, values in BROKEN.items():
            for value in values:
                told = list(all_told({**project.environ, name: value.format(marker)}))
                assert watched.found_in("".join(told)) == [], (name, value)
                assert len(told) == 3 or name in TAKEN, (name, value)
        for number, content in enumerate((b"%s \n", b"%s\n\n", b"\xff%s", b"\0%s ")):
            (project.directory / "secret.txt").write_bytes(content % marker.encode())
            told = list(all_told(project.environ))
            assert watched.found_in("".join(told)) == [], content
            assert len(told) == 3, number
    for command, variables in (
        (["check"], {"GATEWAY_DATABASE_URL": f"postgres//u:{marker}@h"}),
        (["reconcile", "app"], {"HOOK_KEY": marker}),
    ):
        result = project.run(*command, **variables)
        assert result.returncode != 0
        assert watched.found_in(result.stdout + result.stderr) == []
        assert "Traceback" not in result.stderr


def test_settings_and_projects_show_no_secret(project: Project) -> None:
    with in_project(project.directory):
        settings = load_settings(project.environ)
        loaded = load_project(
            settings, environ=project.environ, with_secrets=True, with_api_keys=True
        )
    assert clean(repr(settings) + str(settings) + str(settings.model_dump()))
    assert clean(settings.model_dump_json())
    assert clean(repr(loaded) + str(loaded))
    for part in (
        loaded.config,
        loaded.secrets,
        loaded.api_keys,
        loaded.destinations,
        loaded.alerts,
    ):
        assert clean(repr(part))


@pytest.mark.parametrize("format", ["json", "console"])
async def test_an_unforeseen_error_is_told_without_a_secret(project: Project, format: str) -> None:
    environ = {"GATEWAY_LOG_FORMAT": format}
    death = Death("claim.verified", error="forced while verifying")
    with project.doomed_serve(death, **environ) as serving:
        await serving.ready()
        async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
            answers = [
                await client.post(path, content=body, headers=headers)
                for path, body, headers in all_requests()
            ]
        assert 500 in {a.status_code for a in answers}
        assert clean(b"".join(a.content for a in answers))
    assert "Traceback" in serving.running.output
    assert clean(serving.running.output)
    death = Death("sweep.alive", error="forced while sweeping")
    with project.doomed(death, "worker", **environ) as worker:
        await worker.says("forced while sweeping")
    assert clean(worker.output)


async def test_up_keeps_secrets_from_its_engines_and_in_private_files(tmp_path: Path) -> None:
    project = Project(tmp_path, "", "")
    for name in ("GATEWAY_DATABASE_URL", "GATEWAY_REDIS_URL"):
        del project.environ[name]
    project.environ |= {
        "GATEWAY_PORT": str(free_port()),
        "GATEWAY_LOG_LEVEL": "debug",
        "STRIPE_WEBHOOK_SECRET": SECRETS["STRIPE_SECRET"],
        "GATEWAY_ADMIN_TOKEN": SECRETS["GATEWAY_ADMIN_TOKEN"],
    }
    del project.environ["GITHUB_WEBHOOK_SECRET"]  # which gets a made-up one
    data = tmp_path / ".gateway"
    try:
        with project.process("up") as up:
            await up.says("Ready.")
            [made_up] = json.loads((data / "secrets.json").read_text()).values()
            watched = Watched(**SECRETS, made_up=made_up)
            assert project.run("send", "github", "push").returncode == 0
            pids = descendants(up.process.pid)
            assert watched.found_in(command_lines(pids)) == []
            ours = {up.process.pid, *(p for p in pids if b"-m\0gateway" in command_lines([p]))}
            engines = [pid for pid in pids if pid not in ours]
            assert len(engines) > 2
            for pid in engines:
                assert watched.found_in(environment(pid)) == []
            url = json.loads((data / "up.json").read_text())["database_url"]
            assert watched.found_in(await dump_postgres(url)) == []
            commands = [project.run(c).stdout for c in ("status", "doctor", "check", "routes")]
            assert watched.found_in("".join(commands)) == []
            assert is_private(data / "up.json")
            assert is_private(data / "secrets.json")
            for file in files_below(data):
                if file.name != "secrets.json":
                    assert watched.found_in(file.read_bytes()) == [], file
        assert watched.found_in(up.output) == []
    finally:
        Postgres(data / "postgres").remove()
        Redis(data / "redis").remove()
