"""Bulk operations: begin, show, stop and resume them; actions on ticked rows."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response

from gateway.api.operation import Operation
from gateway.api.operations.bulk import LIST_BULK, RESUME_BULK, SHOW_BULK, STOP_BULK
from gateway.api.shapes import BulkAnswer
from gateway.base.errors import BadRequest, CommandFailed, NotFound, TransitionRefused
from gateway.console.request import PREFIX, ConsoleRequest, back_to

PER_PAGE: Final = 50

T = TypeVar("T")


async def list_bulk(visit: ConsoleRequest) -> Response:
    """Show the bulk operations, newest first."""
    page = await visit.ask(LIST_BULK, after=visit.query.get("after"), limit=PER_PAGE)
    return visit.page("bulk.html", title="Bulk operations", rows=page["items"], next=page["next"])


async def show_bulk(visit: ConsoleRequest) -> Response:
    """Show one bulk operation with its progress bar."""
    bulk = await visit.ask(SHOW_BULK, bulk_id=visit.path("bulk_id"))
    title = f"Bulk operation {bulk['bulk_id']}"
    return visit.page("bulk_operation.html", title=title, bulk=bulk)


async def stop_bulk(visit: ConsoleRequest) -> Response:
    """Stop a bulk operation after its current step. Completed steps are not undone."""
    id = visit.path("bulk_id")
    form = dict(await visit.form())
    bulk = await visit.ask(STOP_BULK, bulk_id=id, reason=form.get("reason"))
    is_done = bulk["status"] == "done"
    notice = "It was done already." if is_done else "It stops after its current step."
    return back_to(f"{PREFIX}/bulk/{id}", notice)


async def resume_bulk(visit: ConsoleRequest) -> Response:
    """Resume a bulk operation at its cursor."""
    id = visit.path("bulk_id")
    form = dict(await visit.form())
    await visit.ask(RESUME_BULK, bulk_id=id, reason=form.get("reason"))
    return back_to(f"{PREFIX}/bulk/{id}", "It is resumed.")


async def begin_counted(
    visit: ConsoleRequest,
    operation: Operation[Any, BulkAnswer],
    page: str,
    filters: Iterable[str],
    *options: str,
) -> Response:
    """Begin a bulk operation on the rows that its confirmation page has counted.

    It continues after the response, and its page shows the progress.
    """
    form, query = dict(await visit.form()), visit.query
    chosen = {name: query.get(name) for name in (*filters, "action", "as_of")}
    chosen |= {name: form.get(name) for name in ("reason", *options)}
    begun = await visit.ask(operation, **chosen, rate=_read_rate(form.get("rate", "").strip()))
    if begun["bulk"] is None:
        return back_to(f"{PREFIX}/{page}", "Nothing matches any more.")
    return back_to(f"{PREFIX}/bulk/{begun['bulk']['bulk_id']}")


def _read_rate(text: str) -> int | None:
    """Read a rate. Empty means as fast as possible. Raises BadRequest if it is not a number."""
    if text and not re.fullmatch("[0-9]{1,9}", text):
        raise BadRequest(f"at most so many a second: found {text[:50]!r}; expected a number")
    return int(text) if text else None


async def act_on_each(
    visit: ConsoleRequest, ticked: Sequence[T], act: Callable[[T], Awaitable[object]], done: str
) -> Response:
    """Apply an action to the ticked rows one by one, and report the rejected ones."""
    if not ticked:
        raise CommandFailed("no row is ticked")
    count, refused = 0, ""
    for row in ticked:
        try:
            await act(row)
            count += 1
        except (BadRequest, NotFound, CommandFailed, TransitionRefused) as error:
            refused = f" Not done: {error}."
    return back_to(visit.came_from, f"{count} of {len(ticked)} {done}.{refused}")


def read_action(given: Mapping[str, str], known: Collection[str]) -> str:
    """Return the action of a form or a query. Raises BadRequest."""
    action = given.get("action", "")
    if action not in known:
        raise BadRequest(f"action: found {action!r}; expected {' or '.join(known)}")
    return action
