"""Remove secrets from reports, because they are read in the logs of builds."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from gateway.testing.rehearse.report import Report
from gateway.testing.rehearse.trace import without_secrets


def without_secrets_in(report: Report) -> Report:
    """Return the report with the secrets removed from every text: rows, SQL, errors, code."""
    shown: Report = _shown(report)
    return shown


def _shown(value: Any) -> Any:
    match value:
        case Enum():
            return value
        case str():
            return without_secrets(value)
        case Mapping():
            return {_shown(key): _shown(part) for key, part in value.items()}
        case tuple() | list():
            return type(value)(_shown(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _shown(getattr(value, f.name)) for f in fields(value)})
    return value
