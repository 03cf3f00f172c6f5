"""The audit log."""

from typing import Annotated

from pydantic import Field

from gateway.api.operation import Operation
from gateway.api.parameters import Cursor, Page, PageParams
from gateway.api.shapes import AuditRow
from gateway.operations.context import OperationContext
from gateway.operations.inspect import list_audit

PLACE = Cursor("id", values=tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]])


async def _audit(office: OperationContext, params: PageParams) -> Page[AuditRow]:
    [after] = PLACE.read(params.after)
    rows = await list_audit(office.ledger, after, params.limit + 1)
    return PLACE.page(rows, params.limit)


AUDIT = Operation(
    name="audit",
    method="GET",
    path="/audit",
    summary="What people and retention did, newest first.",
    params=PageParams,
    result=Page[AuditRow],
    run=_audit,
)
