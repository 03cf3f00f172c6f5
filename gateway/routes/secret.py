"""A secret of a route, as the file says it: a reference, or one that expires."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, WrapValidator

from gateway.notation.moments import Time
from gateway.routes.checks import Reference
from gateway.routes.section import Section
from gateway.secrets import SecretRef


class SecretSection(Section):
    """A secret that counts for a while only."""

    secret: Reference = Field(description="Where it is: env:NAME or file:/path.")
    expires_at: Time | None = Field(
        default=None,
        description="From when on it verifies nothing any more; in UTC unless it names a zone.",
    )


def _read(raw: Any, _: object) -> SecretRef | SecretSection:
    """What is neither is taken for the secret itself, and not shown."""
    return SecretSection.model_validate(raw) if isinstance(raw, dict) else SecretRef.parse(raw)


RouteSecret = Annotated[Reference | SecretSection, WrapValidator(_read)]


def make_ref(item: SecretRef | SecretSection) -> SecretRef:
    """Either form as one value."""
    if isinstance(item, SecretRef):
        return item
    return replace(item.secret, expires_at=item.expires_at)
