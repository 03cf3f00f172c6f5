"""What the image is for, in a sandbox: an event comes in, a handler runs, both processes stop."""

from pathlib import Path

import asyncpg

from tests.deploy.dockerfile import COMMAND, HEALTH_CHECK
from tests.deploy.reach import Reach
from tests.deploy.roles import run_roles
from tests.deploy.sandbox import Sandbox, of_this_environment
from tests.support.ports import free_port
from tests.support.processes import (
    GITHUB_SECRET,
    STRIPE_SECRET,
    Serving,
    stripe_request,
)
from tests.support.waiting import until


def given(reach: Reach) -> dict[str, str]:
    """The environment of a container, beside that of the image."""
    return {
        "GATEWAY_DATABASE_URL": reach.database_url,
        "GATEWAY_REDIS_URL": reach.redis_url,
        "GATEWAY_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(free_port()),
        "STRIPE_WEBHOOK_SECRET": STRIPE_SECRET,
        "GITHUB_WEBHOOK_SECRET": GITHUB_SECRET,
    }


def make_sandbox(reach: Reach, directory: Path) -> Sandbox:
    """With the virtual environment of the tests in it."""
    state = directory / "state"
    state.mkdir(mode=0o700)
    return of_this_environment(given(reach), state=state, logs=directory)


async def take_effect(sandbox: Sandbox, reach: Reach) -> None:
    """On a migrated database with the tables of the handlers."""
    run_roles(reach)
    own = {name: reach.as_role(name, "unused") for name in ("serve", "worker")}
    port = str(free_port())
    with (
        sandbox.started(*COMMAND, GATEWAY_DATABASE_URL=own["serve"]) as serve,
        sandbox.started(
            *("gateway", "worker"), GATEWAY_DATABASE_URL=own["worker"], GATEWAY_WORKER_PORT=port
        ) as worker,
    ):
        await until(lambda: sandbox.run(*HEALTH_CHECK).returncode == 0)
        await until(lambda: sandbox.run(*HEALTH_CHECK, GATEWAY_WORKER_PORT=port).returncode == 0)
        serving = Serving(serve, f"http://127.0.0.1:{sandbox.environ['GATEWAY_PORT']}")
        body, headers = stripe_request("evt_1", "payment_intent.succeeded")
        assert (await serving.post(body, headers)).json()["status"] == "accepted"
        await until(lambda: _is_run(reach.database_url))
        assert serve.stop() == 0, serve.output
        assert sandbox.run(*HEALTH_CHECK).returncode != 0
        assert worker.stop() == 0, worker.output


async def _is_run(url: str) -> bool:
    """By a handler of the image, as the worker's role."""
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("select count(*) from gateway.attempts"))
    finally:
        await connection.close()
