"""`allow` and `limit` of a route: from where requests may come, and how many events are taken."""

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from gateway.model import Rate
from gateway.notation.networks import MOST_NETWORKS, Network, NetworkText
from gateway.notation.problems import Unexpected
from gateway.notation.quantities import format_rate
from gateway.notation.rates import RateText
from gateway.providers import Provider


def _with_a_url(info: ValidationInfo, found: str) -> None:
    """A queue without tokens takes nothing over HTTP: there is nothing to limit."""
    if info.data.get("tokens", ()) is None:
        expected = f"tokens beside {info.field_name}: without them the queue has no URL"
        raise Unexpected(found=found, expected=expected)


def _check_allow(networks: list[Network] | None, info: ValidationInfo) -> list[Network] | None:
    _with_a_url(info, "a list")
    return networks


def _check_limit(limit: Rate | None, info: ValidationInfo) -> Rate | None:
    provider: Provider | None = (info.context or {}).get("provider")
    if limit is None:
        return None
    found = format_rate(limit.count, limit.period)
    if provider is not None and not provider.retries:
        # Spooling instead would only move what is too much to the disk of this machine.
        expected = f"no limit: {provider.name} does not send again what is answered 429"
        raise Unexpected(found=found, expected=expected)
    _with_a_url(info, found)
    return limit


Allow = Annotated[
    Annotated[list[NetworkText], Field(min_length=1, max_length=MOST_NETWORKS)] | None,
    AfterValidator(_check_allow),
    Field(
        description="Addresses and networks from which requests may come; others are answered 403."
        " Default anywhere."
    ),
]
Limit = Annotated[
    RateText | None,
    AfterValidator(_check_limit),
    Field(
        description="How many verified events one serve process takes in a period: 500/s. More are"
        " answered 429, so only where the sender comes again. Default as many as come."
    ),
]
