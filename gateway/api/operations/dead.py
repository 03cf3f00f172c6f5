"""Dead letters."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import LONGEST_PAGE, Cursor, FilterParams, Page, PageParams, RowId, Text
from gateway.api.shapes import Causes, DeadRow, Groups
from gateway.base.times import UtcTime
from gateway.ledger.bulk import read_clock
from gateway.ledger.causes import count_causes
from gateway.operations.bulk import Count, count_dead
from gateway.operations.context import OperationContext
from gateway.operations.inspect import list_dead

PLACE = Cursor(
    "finished_at",
    "delivery_id",
    values=tuple[UtcTime, Annotated[int, Field(ge=0, le=2**63 - 1)]],
)


class DeadFilter(FilterParams):
    """Filter for dead letters."""

    error: Annotated[
        Text | None,
        Field(description="Only where the error has this text; * stands for anything."),
    ] = None
    cause: Annotated[RowId | None, Field(description="Only those that died of this.")] = None


class DeadParams(PageParams, DeadFilter):
    """Filter and page of a listing of dead letters."""


class GroupParams(DeadFilter):
    """Filter for dead letters to count."""

    limit: Annotated[
        int, Field(ge=1, le=LONGEST_PAGE, description="How many groups at the most.")
    ] = 100


class CauseParams(Params):
    """Filter for the causes of dead letters."""

    route: Annotated[Text | None, Field(description="Only this route.")] = None
    handler: Annotated[Text | None, Field(description="Only this handler.")] = None
    cause: Annotated[RowId | None, Field(description="Only those that died of this.")] = None
    limit: Annotated[
        int, Field(ge=1, le=LONGEST_PAGE, description="How many causes at the most.")
    ] = 100


async def _dead(office: OperationContext, params: DeadParams) -> Page[DeadRow]:
    mark = PLACE.read(params.after)
    listed = await list_dead(office.ledger, params.filter, mark, params.limit + 1)
    return PLACE.page(listed.rows, params.limit, end=listed.end)


async def _causes(office: OperationContext, params: CauseParams) -> Causes:
    as_of = await read_clock(office.ledger, None)
    died = await count_causes(
        office.ledger,
        route=params.route,
        handler=params.handler,
        cause=params.cause,
        limit=params.limit,
    )
    return {"as_of": as_of, "total": died.total, "causes": died.causes}  # type: ignore[typeddict-item]


async def _groups(office: OperationContext, params: GroupParams) -> Groups:
    as_of = await read_clock(office.ledger, None)
    count = await count_dead(office.ledger, params.filter, as_of, params.limit)
    return groups_of(count, as_of)


def groups_of(count: Count, as_of: datetime) -> Groups:
    """Convert a count to the result of an operation."""
    return {
        "as_of": as_of,
        "total": count.total,
        "without_payload": count.without_payload,
        "groups": list(count.groups),
    }


DEAD = Operation(
    name="dead",
    method="GET",
    path="/dead",
    summary="Dead letters, newest first: out of attempts, or rejected by the handler.",
    params=DeadParams,
    result=Page[DeadRow],
    run=_dead,
)
CAUSES = Operation(
    name="dead_causes",
    method="GET",
    path="/dead/causes",
    summary="Of what dead letters died, as the sweep has told them apart: however many, at once.",
    params=CauseParams,
    result=Causes,
    run=_causes,
)
GROUPS = Operation(
    name="dead_groups",
    method="GET",
    path="/dead/groups",
    summary="Dead letters by route, handler and what their errors have in common.",
    params=GroupParams,
    result=Groups,
    run=_groups,
)
