"""The operations `status` and `doctor`."""

import os

from gateway.api.operation import Operation, Params
from gateway.operations.context import OperationContext
from gateway.operations.health.doctor import examine
from gateway.operations.health.findings import Finding, Installation
from gateway.operations.health.reading import read_snapshot
from gateway.operations.health.snapshot import HealthSnapshot


class StatusParams(Params):
    """No parameters."""


async def _status(office: OperationContext, _: StatusParams) -> HealthSnapshot:
    routes = () if office.loaded is None else office.loaded.config.routes
    async with office.session() as session:
        return await read_snapshot(office.settings, session, routes)


STATUS = Operation(
    name="status",
    method="GET",
    path="/status",
    summary="What needs attention, then rates, backlog and engines; the spool is the answerer's.",
    params=StatusParams,
    result=HealthSnapshot,
    run=_status,
)


class DoctorParams(Params):
    """No parameters."""


async def _doctor(office: OperationContext, _: DoctorParams) -> list[Finding]:
    project = office.loaded
    return await examine(
        Installation(
            settings=office.settings,
            environ=os.environ,
            config=None if project is None else project.config,
            registry=None if project is None else project.registry,
        )
    )


DOCTOR = Operation(
    name="doctor",
    method="GET",
    path="/doctor",
    summary="Check the whole installation, as the answering process finds it.",
    params=DoctorParams,
    result=list[Finding],
    run=_doctor,
)
