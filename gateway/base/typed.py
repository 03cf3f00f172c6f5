"""Typed objects of an event: `event.stripe()` and `event.github(Model)`."""

from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import stripe
from pydantic import BaseModel, ValidationError
from stripe.events import ALL_EVENT_NOTIFICATIONS

StripeEvent: TypeAlias = stripe.Event | ALL_EVENT_NOTIFICATIONS

THIN: Final = "v2.core.event"


def read_stripe_event(
    body: bytes, object_name: str, client: stripe.StripeClient | None
) -> StripeEvent:
    """Return the typed event. It uses `client` to fetch related objects."""
    if client is None:
        client = stripe.StripeClient("none", http_client=_Unbound())
    if object_name == THIN:
        return client.parse_event_notification_without_verification(body)
    return client.construct_event_without_verification(body)


class _Unbound(stripe.HTTPClient):
    """Raises a helpful error for a fetch, if the event has no client."""

    name = "unbound"

    async def request_async(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    async def request_stream_async(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    def request(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    def request_stream(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError("event.stripe() has no client to fetch with: use event.stripe(ctx.stripe)")


Model = TypeVar("Model", bound=BaseModel)

SHOWN: Final = 5


def read_github_payload(model: type[Model], payload: Any) -> Model:
    """Validate the payload with this model. Raises ValueError with the first mismatches."""
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        # The text of the pydantic error quotes the values, and would be stored with the attempt.
        raise ValueError(f"the payload is no {model.__name__}: {_misfits(error)}") from None


def _misfits(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:SHOWN]]
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(shown) + more
