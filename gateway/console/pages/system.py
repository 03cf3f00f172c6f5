"""System: versions, settings, sizes, retention and the doctor's findings."""

import platform
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from pydantic import SecretStr
from starlette.responses import Response

from gateway.api.operations.health import DOCTOR, STATUS
from gateway.base.units import format_duration
from gateway.config.settings import PREFIX, Settings
from gateway.console.request import ConsoleRequest
from gateway.ledger.connection import QUERIES
from gateway.operations.health.snapshot import HealthSnapshot

HIDDEN: Final = "set (not shown)"
LEVELS: Final = ("problem", "warning", "ok")


async def show_system(visit: ConsoleRequest) -> Response:
    """Show versions and settings, such as a bug report needs."""
    status = await visit.ask(STATUS)
    return visit.page(
        "system.html",
        title="System",
        now=status.at,
        status=status,
        python=platform.python_version(),
        settings=_settings(visit.office.settings),
        sizes=await visit.office.ledger.fetch(QUERIES["list_sizes"]),
        schedule=_schedule(visit, status),
        routes=visit.project.config.routes,
        format_duration=format_duration,
    )


async def show_doctor(visit: ConsoleRequest) -> Response:
    """Run the doctor, on request only because it takes seconds. Show problems first."""
    findings = await visit.ask(DOCTOR)
    findings.sort(key=lambda finding: LEVELS.index(finding["level"]))
    return visit.page("doctor.html", title="Doctor", findings=findings)


def _settings(settings: Settings) -> list[tuple[str, str, str]]:
    """Return name, value and description of each setting. Secret values are not included."""
    written = settings.model_dump(mode="json", exclude_none=True)
    return [
        (f"{PREFIX}{name.upper()}", _shown(settings, name, written), field.description or "")
        for name, field in type(settings).model_fields.items()
    ]


def _shown(settings: Settings, name: str, written: Mapping[str, object]) -> str:
    is_secret = isinstance(getattr(settings, name), SecretStr)
    return HIDDEN if is_secret else str(written.get(name, ""))


def _schedule(
    visit: ConsoleRequest, status: HealthSnapshot
) -> list[tuple[str, timedelta, datetime | None]]:
    """Return the scheduled jobs, their interval and their last run."""
    settings = visit.office.settings
    last = {run.route: run.started_at for run in status.reconciles}
    return [
        ("due deliveries, lost leases, retention (every worker)", settings.sweep, None),
        ("counts for charts and alerts (every process)", settings.sweep, None),
        *(
            (f"reconcile {route.name}", route.reconcile.every, last.get(route.name))
            for route in visit.project.config.routes
            if route.reconcile is not None and route.reconcile.every is not None
        ),
    ]
