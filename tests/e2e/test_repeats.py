"""Bodies that come again under another delivery id: honest ones get in, captured ones do not."""

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from gateway.providers.github_types import UNIQUE
from tests.support.ledger import Reader
from tests.support.octokit import Example, examples
from tests.support.processes import Project, Serving, github_request


@pytest.fixture
async def reader(module_project: Project) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(module_project.environ["GATEWAY_DATABASE_URL"])
    yield Reader(connection)
    await connection.close()


async def send(serving: Serving, example: Example, event: str | None = None) -> tuple[int, str]:
    """Under a fresh GUID; returns the status and what the answer says."""
    body, headers = github_request(str(uuid4()), event or example.event, body=example.body)
    answer = await serving.post(body, headers, path="/webhooks/github")
    told = answer.json()
    return answer.status_code, told.get("status") or told["error"]


async def test_every_example_of_octokit_is_sent_twice(serving: Serving, reader: Reader) -> None:
    sent = examples()
    for example in sent:
        assert await send(serving, example) == (200, "accepted"), example.type
    for example in sent:
        expected = (403, "REPLAYED") if example.type in UNIQUE else (200, "accepted")
        assert await send(serving, example) == expected, example.type
    flagged = await reader.rows(
        "select type, count(*) from gateway.processed_events where replay_of is not null group by 1"
    )
    expected_types = [one.type for one in sent if one.type not in UNIQUE]
    assert {row["type"]: row["count"] for row in flagged} == {
        type: expected_types.count(type) for type in expected_types
    }
    assert {"membership.added", "membership.removed", "organization.member_added"} <= {
        row["type"] for row in flagged
    }


async def test_a_captured_body_under_another_event_header_is_refused(serving: Serving) -> None:
    by_type = {example.type: example for example in examples()}
    for type in ("push", "issues.opened", "membership.added", "ping"):
        captured = by_type[type]
        captured = captured._replace(payload=captured.payload | {"of_this_test": str(uuid4())})
        assert await send(serving, captured) == (200, "accepted")
        for other in {"membership", "ping", "push", "not_yet_known"} - {captured.event}:
            assert await send(serving, captured, other) == (403, "REPLAYED"), (type, other)
