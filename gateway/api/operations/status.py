"""One look at the whole."""

from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.operate.status.look import look
from gateway.operate.status.report import Status


class StatusParams(Params):
    """Nothing to choose."""


async def _status(office: Office, _: StatusParams) -> Status:
    routes = () if office.loaded is None else office.loaded.config.routes
    async with office.session() as session:
        return await look(office.settings, session, routes)


STATUS = Operation(
    name="status",
    method="GET",
    path="/status",
    summary="What needs attention, then rates, backlog and engines; the spool is the answerer's.",
    params=StatusParams,
    result=Status,
    run=_status,
)
