"""GitHub: branches, pull requests and issues follow what GitHub says of them.

GitHub does not say when an event happened (`event.occurred_at` is None): the version is the time
in the object itself. It sends `ping` when a hook is made; no handler takes it, so it is kept as an
event with no delivery.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway import Context, Event, handler

BRANCH: Final = "refs/heads/"
GONE: Final = frozenset({"deleted", "transferred"})
"""Actions after which an issue is no longer in its repository, whatever its `state` says."""


@handler("push")
async def follow_push(event: Event, ctx: Context) -> None:
    """Every push is one row; the head of its branch is that of the newest push."""
    push = event.payload
    repository = push["repository"]
    pushed_at = read_time(repository["pushed_at"])
    # The delivery's id is the same for every hook and every redelivery of one push.
    await ctx.upsert(
        "pushes",
        key={"id": event.id},
        values={
            "repository_id": repository["id"],
            "ref": push["ref"],
            "before": push["before"],
            "after": push["after"],
            "pusher": push["pusher"]["name"],
        },
        version=pushed_at,
    )
    if push["ref"].startswith(BRANCH):
        await ctx.upsert(
            "branches",
            key={
                "repository_id": repository["id"],
                "name": push["ref"].removeprefix(BRANCH),
            },
            values={
                "repository": repository["full_name"],
                "head": None if push["deleted"] else push["after"],
            },
            version=pushed_at,
        )


@handler("pull_request.*")
async def follow_pull_request(event: Event, ctx: Context) -> None:
    """The pull request as it stands."""
    repository, pull = event.payload["repository"], event.payload["pull_request"]
    await ctx.upsert(
        "pull_requests",
        key={"repository_id": repository["id"], "number": pull["number"]},
        values={
            "repository": repository["full_name"],
            "title": pull["title"],
            "author": _login(pull["user"]),
            "state": "merged" if pull["merged_at"] else pull["state"],
            "head": pull["head"]["sha"],
        },
        version=read_time(pull["updated_at"]),
    )


@handler("issues.*")
async def follow_issue(event: Event, ctx: Context) -> None:
    """The issue as it stands. One that was deleted or transferred stays, marked as such."""
    repository, issue = event.payload["repository"], event.payload["issue"]
    action = event.payload["action"]
    await ctx.upsert(
        "issues",
        key={"repository_id": repository["id"], "number": issue["number"]},
        values={
            "repository": repository["full_name"],
            "title": issue["title"],
            "author": _login(issue["user"]),
            "state": action if action in GONE else issue["state"],
        },
        version=read_time(issue["updated_at"]),
    )


def read_time(value: str | int) -> datetime:
    """GitHub writes times as ISO 8601, and in the repository of a push as unix seconds."""
    if isinstance(value, int):
        return datetime.fromtimestamp(value, UTC)
    return datetime.fromisoformat(value)


def _login(user: Mapping[str, Any] | None) -> str | None:
    return user["login"] if user else None
