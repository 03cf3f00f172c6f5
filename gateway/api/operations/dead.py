"""Dead letters."""

from typing import Annotated

from pydantic import AwareDatetime, Field

from gateway.api.filters import FilterParams
from gateway.api.office import Office
from gateway.api.operation import Operation
from gateway.api.paging import Cursor, Page, PageParams
from gateway.api.shapes import DeadRow
from gateway.api.texts import Text
from gateway.operate.inspect import list_dead

PLACE = Cursor(
    "finished_at",
    "delivery_id",
    values=tuple[AwareDatetime, Annotated[int, Field(ge=0, le=2**63 - 1)]],
)


class DeadFilter(FilterParams):
    """Which dead letters."""

    error: Annotated[
        Text | None,
        Field(description="Only where the error has this text; * stands for anything."),
    ] = None


class DeadParams(PageParams, DeadFilter):
    """Which dead letters, and which part of their listing."""


async def _dead(office: Office, params: DeadParams) -> Page[DeadRow]:
    mark = PLACE.read(params.after)
    rows = await list_dead(office.ledger, params.filter, mark, params.limit + 1)
    return PLACE.page(rows, params.limit)


DEAD = Operation(
    name="dead",
    method="GET",
    path="/dead",
    summary="Dead letters, newest first: out of attempts, or rejected by the handler.",
    params=DeadParams,
    result=Page[DeadRow],
    run=_dead,
)
