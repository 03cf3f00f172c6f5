"""A sample as the gateway would keep it: signed, and alone where its sender sends batches."""

from collections.abc import Mapping
from datetime import datetime

from gateway.errors import BadPayload
from gateway.providers import Incoming, Provider
from gateway.samples.sample import Sample


def receive_alone(
    provider: Provider, sample: Sample, *, now: datetime, headers: Mapping[str, str] | None = None
) -> Incoming:
    """Signed with a secret made up for it, whatever the route's own is. More headers go over those
    of the signer."""
    secret = provider.make_secret().encode()
    signed = provider.sign(sample.body, secret=secret, id=sample.id, type=sample.type, now=now)
    incoming = Incoming({**signed.headers, **(headers or {})}, signed.body)
    if provider.split is None:
        return incoming
    items = provider.split(incoming)
    if len(items) != 1:
        raise BadPayload(f"found {len(items)} events; expected one")
    return items[0]
