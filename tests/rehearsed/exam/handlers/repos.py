"""GitHub: pushes, issues, and pull requests that wait for a review."""

from datetime import datetime

from gateway import Context, Event, handler

CHAT = "https://chat.example.com/api"
BOT = "https://bot.example.com"

_greeted: set[int] = set()


@handler("push")
async def count_commits(event: Event, ctx: Context) -> None:
    """How much is pushed: `select sum(commits) from push_log` is the number on the wall."""
    push = event.payload
    await ctx.db.execute(
        "insert into push_log (delivery, repository, commits) values ($1, $2, $3)"
        " on conflict do nothing",
        event.id,
        push["repository"]["id"],
        len(push["commits"]),
    )


@handler("issues.*")
async def track_issue(event: Event, ctx: Context) -> None:
    """The issue as it stands. What was deleted keeps its row, and never comes back to life."""
    issue = event.payload["issue"]
    updated_at = datetime.fromisoformat(issue["updated_at"])
    await ctx.upsert(
        "tracked_issues",
        key={"id": issue["id"]},
        values={
            "repository": event.payload["repository"]["id"],
            "title": issue["title"],
            "state": issue["state"],
        },
        version=updated_at,
    )
    if event.payload["action"] == "deleted":
        await ctx.db.execute(
            "update tracked_issues set deleted_at = greatest(deleted_at, $2) where id = $1",
            issue["id"],
            updated_at,
        )


@handler("issues.opened", "issues.reopened")
async def open_channel(event: Event, ctx: Context) -> None:
    """A chat channel for every issue; the name is made of what never changes."""
    issue_id = event.payload["issue"]["id"]
    channel = f"issue-{issue_id}"
    answer = await ctx.http.put(f"{CHAT}/channels/{channel}", json={"topic": f"Issue {issue_id}"})
    answer.raise_for_status()
    await ctx.upsert("issue_channels", key={"issue": issue_id}, values={"channel": channel})


@handler("issues.opened")
async def greet_author(event: Event, ctx: Context) -> None:
    """The bot says hello under a new issue, and not twice."""
    issue = event.payload["issue"]
    if issue["id"] in _greeted:
        return
    _greeted.add(issue["id"])
    answer = await ctx.http.post(
        f"{BOT}/greetings",
        json={"issue": issue["id"], "author": issue["user"]["login"]},
        headers={"Idempotency-Key": f"greet-{issue['id']}"},
    )
    answer.raise_for_status()


@handler("pull_request.*")
async def queue_review(event: Event, ctx: Context) -> None:
    """What the reviewers see: the pull requests, with their state and head."""
    pull = event.payload["pull_request"]
    await ctx.db.execute(
        "insert into review_queue (id, repository, title, state, head)"
        " values ($1, $2, $3, $4, $5) on conflict (id) do nothing",
        pull["id"],
        event.payload["repository"]["full_name"],
        pull["title"],
        "merged" if pull.get("merged_at") else pull["state"],
        pull["head"]["sha"],
    )
