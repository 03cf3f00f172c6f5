"""Rejected requests: their causes, and their release once they verify."""

from collections import Counter
from typing import Final

from starlette.responses import Response

from gateway.api.operations.rejected import REJECTED, REJECTED_GROUPS, RELEASE, SHOW_REJECTED
from gateway.api.shapes import ReleasedRow
from gateway.base.errors import CommandFailed
from gateway.console.pages.events import LONGEST_SHOWN
from gateway.console.request import ConsoleRequest, back_to, read_id

FILTERS: Final = ("route", "code", "since")
PER_PAGE: Final = 50
GROUPS_SHOWN: Final = 20
WORDS: Final = {
    "accepted": "let in",
    "duplicate": "known already",
    "ignored": "not wanted",
    "refused": "still refused",
    "already": "released before",
}


async def show_rejected(visit: ConsoleRequest) -> Response:
    """Show the rejected requests: first the causes, then the newest ones."""
    query = visit.query
    filters: dict[str, str] = {name: query[name] for name in FILTERS if name in query}
    page = await visit.ask(REJECTED, **filters, after=query.get("after"), limit=PER_PAGE)
    return visit.page(
        "rejected.html",
        title="Refused",
        groups=await visit.ask(REJECTED_GROUPS, **filters, limit=GROUPS_SHOWN),
        rows=page["items"],
        next=page["next"],
        filters=filters,
        routes=visit.project.config.routes,
    )


async def show_one_rejected(visit: ConsoleRequest) -> Response:
    """Show one rejected request. The body is only shown on request."""
    with_body = "body" in visit.query
    rejected = await visit.ask(SHOW_REJECTED, rejected_id=visit.path("id"), body=with_body)
    return visit.page(
        "rejected_one.html",
        title=f"Refused {rejected['id']}",
        rejected=rejected,
        with_body=with_body,
        body=None if rejected["body"] is None else rejected["body"][:LONGEST_SHOWN],
        routes=visit.project.config.doors,
    )


async def release_rejected(visit: ConsoleRequest) -> Response:
    """Release the selected requests, or all matches. They are verified as of their arrival time."""
    fields = await visit.form()
    form = dict(fields)
    ids = [read_id(value) for name, value in fields if name == "id"]
    is_all = "all" in visit.query
    if not ids and not is_all:
        raise CommandFailed("no row is ticked")
    chosen = {name: visit.query.get(name) for name in FILTERS} if is_all else {}
    rows: list[ReleasedRow] = []
    after: str | None = None
    while True:
        page = await visit.ask(
            RELEASE,
            **chosen,
            ids=None if is_all else ids,
            all=is_all,
            to_route=form.get("to_route"),
            reason=form.get("reason"),
            after=after,
        )
        rows += page["items"]
        after = page["next"]
        if after is None:
            return back_to(visit.came_from, _told(rows))


def _told(rows: list[ReleasedRow]) -> str:
    counts = Counter(WORDS.get(row["outcome"], row["outcome"]) for row in rows)
    told = ", ".join(f"{n} {words}" for words, n in counts.items()) or "none matches"
    why = next((row["detail"] for row in rows if row["outcome"] == "refused"), None)
    return f"Of {len(rows)}: {told}." + (f" {why}" if why else "")
