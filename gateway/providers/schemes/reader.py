"""Read the event from a verified request: id, type, account and time."""

import hashlib
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime

from gateway.base.errors import BadPayload
from gateway.base.model import Envelope
from gateway.base.times import from_unix
from gateway.providers.payload import check_text, is_text
from gateway.providers.provider import Incoming, Read
from gateway.providers.schemes.batch import split_items
from gateway.providers.schemes.moments import bounded, parse_moment
from gateway.providers.schemes.places import Looked, Reader, ValuePlace, dig
from gateway.providers.schemes.sections import DIGEST, UUID, MomentSection, SenderSection
from gateway.providers.schemes.template import Template
from gateway.providers.schemes.verifier import Split


def make_read(section: SenderSection) -> Read:
    """Return the read function of a scheme."""
    ids, types = _readers(section.id), _readers(section.type)
    id_names, type_names = (" or ".join(map(str, said)) for said in (section.id, section.type))
    account = None if section.account is None else section.account.reader()
    livemode = None if section.livemode is None else section.livemode.reader()
    occurred_at = None if section.occurred_at is None else _moment_reader(section.occurred_at)

    def read(incoming: Incoming) -> Envelope:
        looked = Looked(incoming)
        return Envelope(
            id=_text(ids, looked, "id", id_names),
            type=_text(types, looked, "type", type_names),
            account=None if account is None else _if_text(account(looked)),
            livemode=None if livemode is None else _LIVEMODES.get(livemode(looked) or ""),
            occurred_at=None if occurred_at is None else occurred_at(looked),
        )

    return read


_LIVEMODES = {"true": True, "live": True, "false": False, "test": False}


def _readers(choices: Sequence[Template]) -> list[Reader]:
    own: dict[str, Reader] = {DIGEST: _digest, UUID: _uuid}
    return [own.get(str(choice)) or choice.reader() for choice in choices]


def _digest(looked: Looked) -> str:
    return hashlib.sha256(looked.body).hexdigest()


def _uuid(_: Looked) -> str:
    return str(uuid.uuid4())


def _text(readers: Sequence[Reader], looked: Looked, key: str, names: str) -> str:
    for read in readers:
        text = read(looked)
        if text:
            return check_text(text, key)
    raise BadPayload(f"`{key}`: found nothing at {names}; expected text")


def _if_text(value: str | None) -> str | None:
    return value if is_text(value) else None


def _moment_reader(section: MomentSection) -> Callable[[Looked], datetime | None]:
    """Return a function that reads an informational time.

    A malformed or out-of-range time is ignored.
    """
    place, unit = section.at, section.unit
    reader = place.reader()

    def read(looked: Looked) -> datetime | None:
        value = dig(looked.json, place.keys) if place.source == "json" else None
        if isinstance(value, float) and unit != "iso":  # Mailgun: 1793534400.5
            seconds = bounded(value / 1000 if unit == "ms" else value)
        else:
            seconds = parse_moment(reader(looked) or "", unit)
        return None if seconds is None or seconds < 0 else from_unix(seconds)

    return read


def make_split(section: SenderSection) -> Split | None:
    """Return a function that splits a batch into one request per item, or None without a batch."""
    batch = section.batch
    if batch is None:
        return None
    if batch == "json":
        batch = ValuePlace("json", "")
    in_form = batch.source == "form"
    path = () if in_form or not batch.name else batch.keys
    name = batch.name

    def split(incoming: Incoming) -> list[Incoming]:
        document, headers = incoming.body, incoming.headers
        if in_form:
            document = Looked(incoming).form.get(name, "").encode("utf-8", "replace")
            headers = {**headers, "content-type": "application/json"}
        items = split_items(document, path, BadPayload)
        return [incoming._replace(body=item, headers=headers) for item in items]

    return split
