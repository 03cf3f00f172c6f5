"""Refused requests: why each was, and letting in what is right by now."""

from collections import Counter
from typing import Final

from starlette.responses import Response

from gateway.api.operations.rejected import REJECTED, REJECTED_GROUPS, RELEASE, SHOW_REJECTED
from gateway.api.shapes import ReleasedRow
from gateway.console.pages.events import LONGEST_SHOWN
from gateway.console.visit import Visit, back_to, read_id
from gateway.errors import CommandFailed

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


async def show_rejected(visit: Visit) -> Response:
    """By cause, then the newest."""
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
        routes=visit.office.project.config.routes,
    )


async def show_one_rejected(visit: Visit) -> Response:
    """One of them; its body only where it is asked for."""
    with_body = "body" in visit.query
    rejected = await visit.ask(SHOW_REJECTED, rejected_id=visit.path("id"), body=with_body)
    return visit.page(
        "rejected_one.html",
        title=f"Refused {rejected['id']}",
        rejected=rejected,
        with_body=with_body,
        body=None if rejected["body"] is None else rejected["body"][:LONGEST_SHOWN],
        routes=visit.office.project.config.doors,
    )


async def release_rejected(visit: Visit) -> Response:
    """Those that were ticked, or all that match: verified again, as of when they came."""
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
