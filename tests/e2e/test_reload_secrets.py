"""SIGHUP: new secrets while requests come in, all of them or none, and not one request lost."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import asyncpg
import httpx
import orjson
import pytest

from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S, until

ROUTES: Final = """
routes:
  stripe:
    provider: stripe
    secrets: ["file:secrets/stripe", env:STRIPE_WEBHOOK_SECRET]
  other:
    provider: stripe
    secrets: ["file:secrets/other"]
  jobs:
    provider: publish
    tokens: ["file:secrets/token"]
"""
TOKEN: Final = "token_{}_0123456789abcdef"
ADMIN: Final = {"authorization": f"Bearer {TOKEN.format('admin')}"}
OK: Final = 200


@pytest.fixture
def project(module_project: Project) -> Project:
    put_secrets(module_project, "first")
    module_project.write("config/routes.yaml", ROUTES)
    return module_project


def put_secrets(project: Project, name: str) -> None:
    """As a careful operator does: each file is the old one or the new one."""
    values = {"stripe": f"whsec_{name}", "other": f"whsec_{name}", "token": TOKEN.format(name)}
    for file, value in values.items():
        project.write(f"secrets/{file}.new", value)
        os.replace(project.directory / f"secrets/{file}.new", project.directory / f"secrets/{file}")


class Senders:
    """Post without a pause on connections that stay open, and look at each answer."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._ids = count()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failures: list[str] = []

    async def post(self, client: httpx.AsyncClient, name: str, path: str) -> int:
        body, headers = stripe_request(f"evt_{next(self._ids)}", secret=f"whsec_{name}")
        answer = await client.post(self._serving.url + path, content=body, headers=headers)
        return answer.status_code

    async def send_forever(self, path: str, names: Callable[[], str]) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            while True:
                name = names()
                try:
                    status = await self.post(client, name, path)
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    return
                self.answers[name, status] += 1

    @asynccontextmanager
    async def at_work(self, *names: Callable[[], str]) -> AsyncIterator[None]:
        paths = ("/webhooks/stripe", "/webhooks/other")
        works = [self.send_forever(path, name) for path in paths for name in names]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def some_more(self, name: str, status: int, n: int = 20) -> None:
        """Waits until so many more have this answer."""
        enough = self.answers[name, status] + n
        await until(lambda: self.failures or self.answers[name, status] >= enough)


async def reloads(serving: Serving) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"{serving.url}/metrics", headers=ADMIN)).text
    lines = [line for line in text.splitlines() if line.startswith("gateway_reloads_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def hang_up(serving: Serving, outcome: str) -> None:
    """Until it was taken or refused."""
    before = (await reloads(serving))[outcome]
    serving.running.process.send_signal(signal.SIGHUP)

    async def is_over() -> bool:
        return (await reloads(serving))[outcome] > before

    await until(is_over)


async def noted(project: Project) -> list[str]:
    connection = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    rows = await connection.fetch("select outcome from gateway.reloads")
    await connection.close()
    return [row["outcome"] for row in rows]


async def test_a_rotation_under_load_drops_and_refuses_nothing(project: Project) -> None:
    """Old and new at once, as a provider does that signs with both, then the new one alone."""
    config = ROUTES.replace('["file:secrets/other"]', '["file:secrets/other", "file:secrets/old"]')
    config = config.replace("env:STRIPE_WEBHOOK_SECRET", '"file:secrets/old"')
    project.write("secrets/old", "whsec_first")
    project.write("config/routes.yaml", config)
    with project.serve() as serving:
        await serving.ready()
        senders = Senders(serving)
        signed_with = ["first"]
        async with senders.at_work(lambda: "first", lambda: signed_with[-1]):
            await senders.some_more("first", OK)
            for name in ("second", "third", "fourth"):
                project.write("secrets/old", "whsec_first")
                put_secrets(project, name)
                await hang_up(serving, "done")
                signed_with.append(name)
                await senders.some_more(name, OK)
                await senders.some_more("first", OK)
                signed_with.append("first")  # what this name signs is not valid any longer
                await senders.some_more("first", OK, 50)
        assert senders.failures == []
        assert {status for _, status in senders.answers} == {OK}
        assert {name for name, _ in senders.answers} == {"first", "second", "third", "fourth"}
        assert await noted(project) == ["done"]
    assert await noted(project) == []


async def test_a_broken_file_changes_nothing_for_no_route(project: Project) -> None:
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN.format("admin")) as serving:
        await serving.ready()
        senders = Senders(serving)
        async with senders.at_work(lambda: "first"):
            await senders.some_more("first", OK)
            put_secrets(project, "second")
            for broken in ("", "two\n\n", " "):
                project.write("secrets/other", broken)
                await hang_up(serving, "refused")
                await senders.some_more("first", OK)
            (project.directory / "secrets/other").unlink()
            await hang_up(serving, "refused")
            for config in (
                "routes: {stripe: {provider: stripe, secrets: [whsec_literal]}",
                ROUTES.replace("provider: publish", "provider: publish\n    max_body: 5KiB"),
                ROUTES.replace("file:secrets/other", "env:NOT_SET"),
            ):
                put_secrets(project, "second")
                project.write("config/routes.yaml", config)
                await hang_up(serving, "refused")
                await senders.some_more("first", OK)
        assert (senders.failures, set(senders.answers)) == ([], {("first", OK)})
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            assert await senders.post(client, "second", "/webhooks/stripe") == 403
        told = serving.running.output
        assert "file:secrets/other, which is empty" in told
        assert "changes of routes.jobs.max_body" in told
        assert "whsec_" not in told
        [status] = orjson.loads(project.run("status", "--json").stdout)
        assert "env:NOT_SET, which is not set" in status["reloads"][0]["error"]
        project.write("config/routes.yaml", ROUTES)
        await hang_up(serving, "done")
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            assert await senders.post(client, "second", "/webhooks/stripe") == OK
            assert await senders.post(client, "first", "/webhooks/other") == 403


async def test_lists_of_secrets_are_read_anew_and_status_and_tokens_follow(
    project: Project,
) -> None:
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN.format("admin")) as serving:
        await serving.ready()
        project.write("secrets/more", "whsec_more")
        put_secrets(project, "second")
        project.write(
            "config/routes.yaml",
            ROUTES.replace('["file:secrets/other"]', '[{secret: "file:secrets/more"}]'),
        )
        await hang_up(serving, "done")
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            senders = Senders(serving)
            assert await senders.post(client, "more", "/webhooks/other") == OK
            assert await senders.post(client, "second", "/webhooks/other") == 403
            for name, expected in (("first", 401), ("second", 201)):
                token = {"authorization": f"Bearer {TOKEN.format(name)}"}
                url = f"{serving.url}/v1/queues/jobs/jobs"
                answer = await client.post(url, json={"payload": 1}, headers=token)
                assert answer.status_code == expected
            status = (await client.get(f"{serving.url}/api/v1/status", headers=ADMIN)).json()
        known = {r["route"]: [s["secret"] for s in r["secrets"]] for r in status["routes"]}
        assert known["other"] == ["file:secrets/more"]


async def test_many_at_once_are_obeyed_and_the_last_state_counts(project: Project) -> None:
    with project.serve() as serving:
        await serving.ready()
        senders = Senders(serving)
        async with (
            senders.at_work(lambda: "first"),
            httpx.AsyncClient(timeout=PATIENCE_S) as client,
        ):
            for number in range(30):
                put_secrets(project, "first" if number < 29 else "last")
                for _ in range(5):
                    serving.running.process.send_signal(signal.SIGHUP)

            async def is_taken() -> bool:
                return await senders.post(client, "last", "/webhooks/stripe") == OK

            await until(is_taken)
            await senders.some_more("first", 403)
        assert senders.failures == []
        assert serving.running.process.poll() is None


async def test_one_during_the_start_or_the_stop_ends_nothing(project: Project) -> None:
    with project.serve(GATEWAY_LINGER="1s") as serving:
        process = serving.running.process
        await until(lambda: hears_hangups(process.pid))
        ready = asyncio.create_task(serving.ready())
        while not ready.done():
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.005)
        await ready
        assert (await reloads(serving))["done"] > 0, "what was asked during the start is forgotten"
        process.terminate()
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.005)
        assert process.wait(PATIENCE_S) == 0, serving.running.output


def hears_hangups(pid: int) -> bool:
    """Whether SIGHUP is caught: before that, a process has hardly begun."""
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) & 1 << signal.SIGHUP - 1)


async def test_a_worker_goes_on_and_says_that_it_reloads_nothing(project: Project) -> None:
    with project.process("worker") as worker:
        await worker.says("worker_started")
        worker.process.send_signal(signal.SIGHUP)
        await worker.says("not_reloaded")
        worker.process.terminate()
        assert worker.process.wait(PATIENCE_S) == 0
