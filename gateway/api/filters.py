"""Which events or deliveries are meant, in the words of the commands' options."""

from typing import Annotated

from pydantic import Field

from gateway.api.operation import Params
from gateway.api.values import Text
from gateway.ledger.filter import Filter
from gateway.notation.moments import Moment


class FilterParams(Params):
    """What every listing can be filtered by."""

    route: Annotated[Text | None, Field(description="Only this route.")] = None
    type: Annotated[Text | None, Field(description="Only these event types (invoice.*).")] = None
    handler: Annotated[Text | None, Field(description="Only this handler.")] = None
    since: Annotated[Moment | None, Field(description="Not before: 2h (ago), or a time.")] = None
    until: Annotated[Moment | None, Field(description="Before: 10m (ago), or a time.")] = None
    account: Annotated[Text | None, Field(description="Only of this account.")] = None

    @property
    def filter(self) -> Filter:
        names = FilterParams.model_fields.keys() | {"error", "cause", "effect"}
        return Filter(**{n: v for n, v in self if n in names})
