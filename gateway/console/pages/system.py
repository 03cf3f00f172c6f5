"""System: versions, settings, sizes, retention, and what the doctor says."""

import platform
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from pydantic import SecretStr
from starlette.responses import Response

from gateway.api.operations.doctor import DOCTOR
from gateway.api.operations.status import STATUS
from gateway.console.visit import Visit
from gateway.ledger.queries import QUERIES
from gateway.notation.quantities import format_duration
from gateway.operate.status.report import Status
from gateway.settings import PREFIX, Settings

HIDDEN: Final = "set (not shown)"
LEVELS: Final = ("problem", "warning", "ok")


async def show_system(visit: Visit) -> Response:
    """What an answer to "which version, with which settings?" needs."""
    status = await visit.ask(STATUS)
    return visit.page(
        "system.html",
        title="System",
        now=status["at"],
        status=status,
        python=platform.python_version(),
        settings=_settings(visit.office.settings),
        sizes=await visit.office.ledger.fetch(QUERIES["list_sizes"]),
        schedule=_schedule(visit, status),
        routes=visit.office.project.config.routes,
        format_duration=format_duration,
    )


async def show_doctor(visit: Visit) -> Response:
    """Takes seconds: only when it is asked for. What is wrong comes first."""
    findings = await visit.ask(DOCTOR)
    findings.sort(key=lambda finding: LEVELS.index(finding["level"]))
    return visit.page("doctor.html", title="Doctor", findings=findings)


def _settings(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value as one would write it, and meaning: a secret's value is nowhere near the page."""
    written = settings.model_dump(mode="json", exclude_none=True)
    return [
        (f"{PREFIX}{name.upper()}", _shown(settings, name, written), field.description or "")
        for name, field in type(settings).model_fields.items()
    ]


def _shown(settings: Settings, name: str, written: Mapping[str, object]) -> str:
    is_secret = isinstance(getattr(settings, name), SecretStr)
    return HIDDEN if is_secret else str(written.get(name, ""))


def _schedule(visit: Visit, status: Status) -> list[tuple[str, timedelta, datetime | None]]:
    """What runs by itself, how often, and when it last did."""
    settings = visit.office.settings
    last = {run["route"]: run["started_at"] for run in status["reconciles"]}
    return [
        ("due deliveries, lost leases, retention (every worker)", settings.sweep, None),
        ("counts for charts and alerts (every process)", settings.sweep, None),
        *(
            (f"reconcile {route.name}", route.reconcile.every, last.get(route.name))
            for route in visit.office.project.config.routes
            if route.reconcile is not None and route.reconcile.every is not None
        ),
    ]
