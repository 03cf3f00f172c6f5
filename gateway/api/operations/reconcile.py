"""Reconciliations: what a provider sent and the ledger never got."""

from datetime import datetime
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.api.paging import Cursor, Page, PageParams
from gateway.api.values import RowId, Text
from gateway.errors import CommandFailed
from gateway.ledger.gaps import count_reasons, list_gaps
from gateway.ledger.reconciliations import find_reconciliation, list_reconciliations
from gateway.notation.moments import Moment
from gateway.project import database_url
from gateway.reconcile.orders import Means, begin, carry_out, resume, tell

Id = Annotated[RowId, Field(description="The id of a reconciliation.")]
PLACE = Cursor("id", values=tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]])


class Reconciliation(TypedDict):
    """One run, and how far it has come."""

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
    """An event that a run could not recover."""

    event_id: str
    type: str
    status: str
    occurred_at: datetime
    asks: int
    asked_at: datetime | None
    recorded: str | None
    reason: str | None


class Reason(TypedDict):
    """Why how many could not be recovered."""

    status: str
    reason: str
    count: int


class ReconciliationDetail(Reconciliation):
    """One run with what it could not recover: by reason, and the first hundred of them."""

    reasons: list[Reason]
    gaps: list[GapRow]


class ReconcileParams(Params):
    """Which route, and from when on."""

    route: Annotated[Text, Field(description="The route whose provider is asked.")]
    since: Annotated[
        Moment | None,
        Field(description="Not before: 3d (ago), or a time; else from the last scheduled run on."),
    ] = None
    dry_run: Annotated[bool, Field(description="Only count what is missing.")] = False
    resume: Annotated[bool, Field(description="Go on with the route's last run.")] = False


class ReconciliationsParams(PageParams):
    """Which part of the listing."""

    route: Annotated[Text | None, Field(description="Only this route.")] = None


class ReconciliationParams(Params):
    """Which run."""

    id: Id


def means_of(office: Office) -> Means:
    """What runs need, as this office has it."""
    return Means(
        url=database_url(office.settings),
        config=office.project.config,
        registry=office.project.registry,
        vault=office.vault,
        wake=office.wake,
    )


async def _reconcile(office: Office, params: ReconcileParams) -> Reconciliation:
    """Begins a run. In `serve` it goes on after the answer; a command carries it out itself."""
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


async def _go_on(means: Means, id: int) -> None:
    tell(await carry_out(means, id))


async def _reconciliations(office: Office, params: ReconciliationsParams) -> Page[Reconciliation]:
    [after] = PLACE.read(params.after)
    rows = await list_reconciliations(office.ledger, params.route, after, params.limit + 1)
    return PLACE.page(rows, params.limit)


async def _reconciliation(office: Office, params: ReconciliationParams) -> ReconciliationDetail:
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
