"""The Admin API of a real `serve`: against its own document, without its token, and from afar."""

import asyncio
import http.client
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import orjson
import pytest

from tests.support.fuzzing import fuzz
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S

TOKEN: Final = "admin-token-of-the-suite"
BEARER: Final = {"authorization": f"Bearer {TOKEN}"}
EXAMPLES: Final = 12
"""For each operation and phase."""

STRANGERS: Final = {"/healthz", "/readyz"}
"""What answers without a token, beside webhooks and queues."""


@pytest.fixture(scope="module")
def admin(module_project: Project) -> Iterator[Serving]:
    """A `serve` with a token, and a past: events, dead letters, orders."""
    with module_project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
        asyncio.run(_past(module_project, serving))
        yield serving


async def _past(project: Project, serving: Serving) -> None:
    await serving.ready()
    await serving.post_all([stripe_request(f"evt_{n}") for n in range(16)])
    await _die(project)


async def _die(project: Project) -> None:
    """Dead letters, also after the orders that schemathesis gave for all of them."""
    connection = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    await connection.execute(
        "update gateway.deliveries set status = 'dead', attempts = 3, finished_at = now(),"
        " error = 'TimeoutError: order ' || id where id % 2 = 0"
    )
    await connection.close()


def ask(admin: Serving, method: str, path: str, **options: Any) -> httpx.Response:
    headers = options.pop("headers", BEARER)
    return httpx.request(
        method, f"{admin.url}/api/v1{path}", headers=headers, timeout=PATIENCE_S, **options
    )


@pytest.mark.parametrize("steps", ["../../../webhooks/x", "..%2f..%2f..%2fwebhooks%2fx", "%2e/x"])
def test_a_path_that_a_front_takes_for_a_webhook_leads_nowhere(admin: Serving, steps: str) -> None:
    """One that allows /webhooks/ alone resolves the steps, and sends on the path as it came."""
    connection = http.client.HTTPConnection(admin.url.removeprefix("http://"))
    connection.request("GET", f"/api/v1/events/{steps}")
    assert connection.getresponse().status == 404  # 401 were the API itself
    connection.close()


def test_the_document_and_what_is_answered_agree_whatever_is_asked(
    admin: Serving, tmp_path: Path
) -> None:
    document = f"{admin.url}/api/v1/openapi.json"
    fuzz(document, directory=tmp_path, token=TOKEN, examples=EXAMPLES)


def test_nothing_but_webhooks_queues_and_health_answers_without_its_token(admin: Serving) -> None:
    document = ask(admin, "GET", "/openapi.json").json()
    paths = [p.replace("{", "").replace("}", "") for p in document["paths"]]
    asked = [*paths, "/api/v1/openapi.json", "/api/v1", "/api/v1/", "/api/v1/nothing", "/metrics"]
    methods = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND")
    wrong: tuple[dict[str, str], ...] = (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
    )
    with httpx.Client(base_url=admin.url, timeout=PATIENCE_S) as client:
        for path, method, headers in product(asked, methods, wrong):
            answer = client.request(method, path, headers=headers)
            refused = {401, 404, 405} if path in ("/metrics", "/api/v1") else {401}
            assert answer.status_code in refused, (method, path, answer.status_code)
            assert "evt_" not in answer.text
        for path in STRANGERS:
            assert client.get(path).status_code == 200


def test_without_a_token_there_is_no_admin_api(serving: Serving) -> None:
    for headers in ({}, BEARER, {"authorization": "Bearer"}):
        answer = httpx.get(f"{serving.url}/api/v1/events", headers=headers, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()) == (404, {"error": "NOT_FOUND"})
    assert httpx.get(f"{serving.url}/metrics", timeout=PATIENCE_S).status_code == 200


def test_the_metrics_have_a_token_of_their_own(module_project: Project) -> None:
    with module_project.serve(
        GATEWAY_ADMIN_TOKEN=TOKEN, GATEWAY_METRICS_TOKEN=TOKEN[::-1]
    ) as serving:
        asyncio.run(serving.ready())
        mine = {"authorization": f"Bearer {TOKEN[::-1]}"}
        for headers, path, status in (
            (mine, "/metrics", 200),
            (BEARER, "/metrics", 200),
            ({}, "/metrics", 401),
            (mine, "/api/v1/events", 401),
        ):
            assert (
                httpx.get(serving.url + path, headers=headers, timeout=PATIENCE_S).status_code
                == status
            )


def test_pages_neither_repeat_nor_leave_out(admin: Serving, module_project: Project) -> None:
    asyncio.run(_die(module_project))
    for path, key in (("/events", "event_id"), ("/dead", "delivery_id")):
        whole = ask(admin, "GET", path, params={"limit": 1000}).json()
        assert whole["next"] is None
        seen: list[dict[str, Any]] = []
        after: dict[str, str] | None = {}
        while after is not None:
            page = ask(admin, "GET", path, params={"limit": 5, **after}).json()
            assert len(page["items"]) <= 5
            seen += page["items"]
            after = None if page["next"] is None else {"after": page["next"]}
        assert [row[key] for row in seen] == [row[key] for row in whole["items"]]
        assert len(seen) >= 6
        for wrong in ("x", "é", "W10=", "bnVsbA==", "WzFd", "["):
            answer = ask(admin, "GET", path, params={"after": wrong})
            assert (answer.status_code, answer.json()["error"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "command",
    [
        ("events", "--json"),
        ("events", "--json", "--type", "invoice.*", "--limit", "3"),
        ("dead", "--json", "--error", "timeout*order"),
        ("show", "evt_3", "--json"),
        ("show", "evt_3", "--body"),
        ("audit", "--json"),
        ("dead", "--group", "--json"),
        ("bulk", "--json"),
    ],
    ids=" ".join,
)
def test_a_command_says_the_same_from_afar(
    admin: Serving, module_project: Project, command: tuple[str, ...]
) -> None:
    here = module_project.run(*command)
    afar = module_project.run(
        *command, "--url", admin.url, GATEWAY_ADMIN_TOKEN=TOKEN, GATEWAY_DATABASE_URL=""
    )
    assert (here.returncode, here.stderr) == (0, "")
    assert (afar.returncode, afar.stderr) == (0, "")
    if "--json" in command:
        assert orjson.loads(afar.stdout) == orjson.loads(here.stdout)
    else:
        assert afar.stdout == here.stdout


def test_an_order_from_afar_says_who_gave_it(admin: Serving, module_project: Project) -> None:
    asyncio.run(_die(module_project))
    [letter, *_] = ask(admin, "GET", "/dead").json()["items"]
    delivery_id = str(letter["delivery_id"])
    options = ("--url", admin.url, "--reason", "seen from afar")
    ran = module_project.run("replay", delivery_id, *options, GATEWAY_ADMIN_TOKEN=TOKEN)
    assert (ran.returncode, ran.stdout) == (0, f"delivery {delivery_id}: replayed\n")
    [row] = ask(admin, "GET", "/audit", params={"limit": 1}).json()["items"]
    assert row["actor"].endswith(" (api)")
    assert (row["action"], row["reason"]) == ("replay", "seen from afar")


def test_from_afar_what_is_wrong_is_told_in_one_line(
    admin: Serving, module_project: Project, serving: Serving
) -> None:
    for url, token, code, told in (
        (admin.url, "another-token-altogether", 1, "refused the token"),
        (admin.url, "", 2, "GATEWAY_ADMIN_TOKEN"),
        (serving.url, TOKEN, 1, "off without GATEWAY_ADMIN_TOKEN"),
        ("http://127.0.0.1:9", TOKEN, 1, "does not answer"),
        ("ftp://127.0.0.1", TOKEN, 2, "http"),
        ("nonsense", TOKEN, 2, "http"),
    ):
        ran = module_project.run("events", "--url", url, GATEWAY_ADMIN_TOKEN=token)
        assert ran.returncode == code, (url, ran.stderr)
        assert told in ran.stderr, (url, ran.stderr)
        assert "Traceback" not in ran.stderr
        assert TOKEN not in ran.stderr
    ran = module_project.run("show", "evt_none", "--url", admin.url, GATEWAY_ADMIN_TOKEN=TOKEN)
    assert (ran.returncode, ran.stderr) == (1, "error: there is no event or delivery 'evt_none'\n")


async def test_while_postgres_is_away_it_says_so_and_the_process_lives(
    module_project: Project,
) -> None:
    module_project.write(
        "config/spooling.yaml",
        "routes: {github: {provider: github, secrets: [env:GITHUB_WEBHOOK_SECRET]}}\n",
    )
    with module_project.serve(
        GATEWAY_ADMIN_TOKEN=TOKEN,
        GATEWAY_CONFIG="config/spooling.yaml",
        GATEWAY_DATABASE_URL="postgresql://nobody@127.0.0.1:9/none",
    ) as serving:
        await serving.ready()
        async with httpx.AsyncClient(headers=BEARER, timeout=PATIENCE_S) as client:
            answer = await client.get(f"{serving.url}/api/v1/events")
            ready = await client.get(f"{serving.url}/readyz")
        assert (answer.status_code, answer.json()["error"]) == (503, "UNAVAILABLE")
        assert answer.headers["retry-after"]
        assert ready.json()["status"] == "spooling"
