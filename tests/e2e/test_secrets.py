"""Secrets that expire and are counted, in a real `serve`."""

from datetime import UTC, datetime, timedelta
from itertools import count

import httpx
import orjson
import pytest

from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S

NEW = "whsec_new_0123456789abcdef"
OLD = "whsec_old_0123456789abcdef"
SECRETS = {"NEW": NEW, "OLD": OLD}
TOKENS = {"NEW_TOKEN": "token_new_0123456789abcdef", "OLD_TOKEN": "token_old_0123456789abcdef"}
ROUTES = """
routes:
  stripe:
    provider: stripe
    secrets: [env:NEW, {{secret: env:OLD, expires_at: "{end}"}}]
  jobs:
    provider: publish
    tokens: [{{secret: env:OLD_TOKEN, expires_at: "{end}"}}, env:NEW_TOKEN]
"""


@pytest.fixture
def project(module_project: Project) -> Project:
    module_project.environ |= {**SECRETS, **TOKENS}
    return module_project


async def send(serving: Serving, id: str, secret: str) -> int:
    body, headers = stripe_request(id, secret=secret)
    return (await serving.post(body, headers)).status_code


async def publish(serving: Serving, id: str, token: str) -> int:
    headers = {"authorization": f"Bearer {TOKENS[token]}", "content-type": "application/json"}
    body = orjson.dumps({"payload": 1, "idempotencyKey": id})
    return (await serving.post(body, headers, path="/v1/queues/jobs/jobs")).status_code


async def look(serving: Serving, token: str) -> int:
    headers = {"authorization": f"Bearer {TOKENS[token]}"}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        return (
            await client.get(f"{serving.url}/v1/queues/jobs/jobs/a", headers=headers)
        ).status_code


async def test_a_secret_stops_at_its_expiry_without_a_restart(project: Project) -> None:
    end = datetime.now(UTC) + timedelta(seconds=3)
    project.write("config/routes.yaml", ROUTES.format(end=end.isoformat()))
    opened = {"NEW": 0, "OLD": 0, "NEW_TOKEN": 0, "OLD_TOKEN": 0}

    async def use(number: int, name: str) -> None:
        """Whatever the machine is busy with: right before the end, and right after it."""
        began_at = datetime.now(UTC)
        if name in TOKENS:
            status = await publish(serving, f"job {number} {name}", name)
        else:
            status = await send(serving, f"evt_{number}_{name}", SECRETS[name])
        opened[name] += status < 300
        if name.startswith("NEW") or datetime.now(UTC) < end:
            assert status < 300
        elif began_at >= end:
            assert status == (401 if name in TOKENS else 403)

    with project.serve() as serving:
        await serving.ready()
        for number in count():
            is_last = datetime.now(UTC) >= end
            for name in opened:
                await use(number, name)
            if is_last:
                break
        assert [await look(serving, token) for token in TOKENS] == [404, 401]
        await serving.running.says('"event":"secret_expired"')
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            metrics = (await client.get(f"{serving.url}/metrics")).text
    used = [line for line in metrics.splitlines() if line.startswith("gateway_secret_used_total{")]
    assert used == [
        f'gateway_secret_used_total{{route="{route}",secret="env:{name}"}} {float(opened[name])}'
        for route, names in (("jobs", TOKENS), ("stripe", SECRETS))
        for name in names
    ]
    [status] = orjson.loads(project.run("status", "--json").stdout)
    kept = {s["secret"]: s["uses"] for route in status["routes"] for s in route["secrets"]}
    assert kept == {f"env:{name}": n for name, n in opened.items()}


async def test_a_route_whose_secrets_have_all_expired_refuses_and_says_so(
    project: Project,
) -> None:
    project.write(
        "config/routes.yaml",
        """
        routes:
          stripe:
            provider: stripe
            secrets:
              - {secret: env:GONE, expires_at: 2020-01-01}
              - {secret: env:OLD, expires_at: 2020-01-01}
          other:
            provider: stripe
            secrets: [env:NEW]
        """,
    )
    checked = project.run("check")
    assert checked.returncode == 0
    assert "warning: every secret of stripe has expired: all its requests are refused" in (
        checked.stdout
    )
    assert project.run("send", "stripe", "invoice.paid").returncode == 1
    with project.serve() as serving:
        await serving.ready()
        assert await send(serving, "g1", OLD) == 403
        body, headers = stripe_request("g2", secret=NEW)
        assert (await serving.post(body, headers, path="/webhooks/other")).status_code == 200
        await serving.running.says('"event":"no_secret_left"')
        await serving.running.says("every secret of the route has expired")
