"""Reconciliations: find events that a provider sent but the ledger does not have."""

from datetime import datetime
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from gateway.api.operation import Operation, Params
from gateway.api.parameters import BY_ID, Page, PageParams, RowId, Text
from gateway.base.errors import CommandFailed
from gateway.base.times import Moment
from gateway.config.project import database_url
from gateway.ledger.reconciliations import (
    count_reasons,
    find_reconciliation,
    list_gaps,
    list_reconciliations,
)
from gateway.operations.context import OperationContext
from gateway.operations.reconcile.runs import ReconcileContext, begin, carry_out, resume, tell

Id = Annotated[RowId, Field(description="The id of a reconciliation.")]


class Reconciliation(TypedDict):
    """A reconciliation and its progress."""

    id: int
    route: str
    actor: str
    since: datetime
    until: datetime
    note: str | None
    dry_run: bool
    status: str
    phase: str
    cursor: str | None
    listed: int
    missing: int
    recovered: int
    outstanding: int
    unrecoverable: int
    error: str | None
    started_at: datetime
    stepped_at: datetime
    finished_at: datetime | None


class GapRow(TypedDict):
    """An event that was not recovered."""

    event_id: str
    type: str
    status: str
    occurred_at: datetime
    asks: int
    asked_at: datetime | None
    recorded: str | None
    reason: str | None


class Reason(TypedDict):
    """The number of events not recovered for the same reason."""

    status: str
    reason: str
    count: int


class ReconciliationDetail(Reconciliation):
    """A reconciliation with the events not recovered: counts by reason, and the first hundred."""

    reasons: list[Reason]
    gaps: list[GapRow]


class ReconcileParams(Params):
    """The route to reconcile, and the time range."""

    route: Annotated[Text, Field(description="The route whose provider is asked.")]
    since: Annotated[
        Moment | None,
        Field(description="Not before: 3d (ago), or a time; else from the last scheduled run on."),
    ] = None
    dry_run: Annotated[bool, Field(description="Only count what is missing.")] = False
    resume: Annotated[bool, Field(description="Go on with the route's last run.")] = False


class ReconciliationsParams(PageParams):
    """Filter and page of a listing of reconciliations."""

    route: Annotated[Text | None, Field(description="Only this route.")] = None


class ReconciliationParams(Params):
    """The reconciliation."""

    id: Id


def means_of(office: OperationContext) -> ReconcileContext:
    """Return the dependencies of a reconciliation, taken from the office."""
    return ReconcileContext(
        url=database_url(office.settings),
        config=office.project.config,
        registry=office.project.registry,
        encryption=office.encryption,
        wake=office.wake,
    )


async def _reconcile(office: OperationContext, params: ReconcileParams) -> Reconciliation:
    """Start a reconciliation. `serve` continues it after the response, a command runs it itself."""
    if params.resume and (params.since is not None or params.dry_run):
        raise CommandFailed("found resume beside since or dry_run; expected it alone")
    means = means_of(office)
    async with office.session() as connection:
        if params.resume:
            id = await resume(connection, means, params.route)
        else:
            id = await begin(
                connection,
                means,
                params.route,
                actor=office.actor,
                since=params.since,
                dry_run=params.dry_run,
            )
    if office.background is not None:
        office.background.start(_go_on(means, id), name=f"reconciliation {id}")
    found: Reconciliation = await find_reconciliation(office.ledger, id)  # type: ignore[assignment]
    return found


async def _go_on(means: ReconcileContext, id: int) -> None:
    tell(await carry_out(means, id))


async def _reconciliations(
    office: OperationContext, params: ReconciliationsParams
) -> Page[Reconciliation]:
    [after] = BY_ID.read(params.after)
    rows = await list_reconciliations(office.ledger, params.route, after, params.limit + 1)
    return BY_ID.page(rows, params.limit)


async def _reconciliation(
    office: OperationContext, params: ReconciliationParams
) -> ReconciliationDetail:
    detail: ReconciliationDetail = await find_reconciliation(office.ledger, params.id) | {
        "reasons": await count_reasons(office.ledger, params.id),
        "gaps": await list_gaps(office.ledger, params.id),
    }  # type: ignore[assignment]
    return detail


RECONCILE = Operation(
    name="reconcile",
    method="POST",
    path="/reconciliations",
    summary="Ask a route's provider what it sent, and recover what never arrived.",
    params=ReconcileParams,
    result=Reconciliation,
    run=_reconcile,
    status=201,
)
RECONCILIATIONS = Operation(
    name="reconciliations",
    method="GET",
    path="/reconciliations",
    summary="Reconciliations, newest first.",
    params=ReconciliationsParams,
    result=Page[Reconciliation],
    run=_reconciliations,
)
RECONCILIATION = Operation(
    name="reconciliation",
    method="GET",
    path="/reconciliations/{id}",
    summary="One reconciliation, with what it could not recover.",
    params=ReconciliationParams,
    result=ReconciliationDetail,
    run=_reconciliation,
)
