"""Checks the installation, as the answering process finds it."""

import os

from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.operate.doctor.examine import examine
from gateway.operate.doctor.finding import Finding
from gateway.operate.doctor.installation import Installation


class DoctorParams(Params):
    """Nothing to choose."""


async def _doctor(office: Office, _: DoctorParams) -> list[Finding]:
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
