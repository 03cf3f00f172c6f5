"""System: versions, settings, sizes, retention, and what the doctor says."""

import platform
from typing import Final

from pydantic import SecretStr
from starlette.responses import Response

from gateway.api.operations.doctor import DOCTOR
from gateway.api.operations.status import STATUS
from gateway.console.visit import Visit
from gateway.ledger.queries import QUERIES
from gateway.notation.quantities import format_duration
from gateway.settings import PREFIX, Settings

HIDDEN: Final = "set (not shown)"


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
        routes=visit.office.project.config.routes,
        format_duration=format_duration,
    )


async def show_doctor(visit: Visit) -> Response:
    """Takes seconds: only when it is asked for."""
    return visit.page("doctor.html", title="Doctor", findings=await visit.ask(DOCTOR))


def _settings(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each: a secret's value is nowhere near the page."""
    return [
        (f"{PREFIX}{name.upper()}", _shown(getattr(settings, name)), field.description or "")
        for name, field in type(settings).model_fields.items()
    ]


def _shown(value: object) -> str:
    if value is None:
        return ""
    return HIDDEN if isinstance(value, SecretStr) else str(value)
